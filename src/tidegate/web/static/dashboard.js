"use strict";
// What a page gains by a script: it stays up to date, tells ages, and reads its charts. Without one it shows the same.

const find = (selector, within = document) => within.querySelector(selector);
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

// Login: the token came behind the #, which is never sent; it is taken out of the address before anything else.
function login() {
  const form = find("form[data-login]");
  if (!form || location.hash.length < 2) return;
  const token = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  try {
    form.elements.token.value = decodeURIComponent(token);
  } catch {
    form.elements.token.value = token; // a percent sign that encodes nothing
  }
  form.submit();
}

// Theme: the system's, until someone chooses.
function themes() {
  const button = find("[data-theme-switch]");
  if (!button) return;
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const tell = () => button.setAttribute("aria-pressed", String(dark()));
  button.addEventListener("click", () => {
    const theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("tidegate-theme", theme);
    } catch {
      // It holds until the next page.
    }
    tell();
  });
  button.hidden = false;
  tell();
}

// Ages: times are written out by the server; here they become "12 s ago".
function age(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}
const ahead = Number(document.body.dataset.now || Date.now()) - Date.now(); // the server's clock before this one
function tellAges() {
  for (const time of findAll("time[data-age]")) {
    const text = age((Date.now() + ahead - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
}

// Live: the server sends the parts of the page that change; only what differs is touched, so that focus, selection and
// scrolling stay where they are.
function sameKind(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && key(old) === key(fresh);
}
function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}
function renew(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-age") && old.dateTime === fresh.dateTime) return;
  for (const { name } of [...old.attributes]) {
    const kept = name === "open" && old.nodeName === "DETAILS"; // whoever opened it goes on reading
    if (!fresh.hasAttribute(name) && !kept) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  renewChildren(old, fresh);
}
function later(place, wanted) {
  // What stood before it may be gone: then the rest is further on, and need not be made anew.
  if (wanted.nodeType !== Node.ELEMENT_NODE) return null;
  let found = place;
  while (found && !(sameKind(found, wanted) && found.className === wanted.className)) found = found.nextSibling;
  return found;
}
function renewChildren(old, fresh) {
  const keyed = new Map([...old.children].filter(key).map((child) => [key(child), child]));
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = key(wanted) ? keyed.get(key(wanted)) : null;
    if (known && known !== place) {
      old.insertBefore(known, place);
      place = known;
    }
    if (place && !key(wanted) && !sameKind(place, wanted)) {
      const found = later(place, wanted);
      while (found && place !== found) {
        const next = place.nextSibling;
        place.remove();
        place = next;
      }
    }
    if (place && sameKind(place, wanted)) {
      renew(place, wanted);
      place = place.nextSibling;
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
function show(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const region of findAll("[data-region]", fresh)) {
    const old = find(`[data-region="${region.dataset.region}"]`);
    if (!old) continue;
    const before = old.dataset.announce;
    renew(old, region);
    if (old.dataset.announce !== before) find("[data-announcer]").textContent = old.dataset.announce;
  }
  tellAges();
  readChart(); // the pointer rests where it was; the page from the server has no reading
}
function live() {
  const sign = find("[data-live]");
  if (!sign || !document.body.dataset.events) return;
  let stream = null;
  const tell = (state, text) => {
    if (sign.dataset.live === state) return;
    sign.dataset.live = state;
    find("span", sign).textContent = text;
  };
  const open = () => {
    stream = new EventSource(document.body.dataset.events);
    stream.onopen = () => tell("on", "Live");
    stream.onerror = () => {
      if (stream.readyState === EventSource.CLOSED) tell("lost", "Disconnected: reload the page");
      else tell("lost", "Reconnecting");
    };
    stream.addEventListener("page", (event) => show(event.data));
  };
  // A browser keeps few connections to one server: a page that nobody sees gives its own up.
  const close = () => {
    stream?.close();
    stream = null;
    tell("off", "Waiting");
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!stream) open();
  });
  document.addEventListener("events-moved", () => {
    if (!stream) return;
    stream.close();
    open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && !stream && open());
  if (!document.hidden) open();
}

// Charts: where the pointer is, the value is told in words beside the chart. The points are those of its table.
// An update may replace what is under the pointer, so its place is kept and not the element.
let pointer = null;
let read = null; // the chart that shows a reading
function readChart() {
  const chart = pointer && document.elementFromPoint(pointer.x, pointer.y)?.closest(".chart");
  if (read && read !== chart) {
    find(".cursor", read)?.setAttribute("visibility", "hidden");
    const told = find(".reading", read.closest("figure") || document.createElement("p"));
    if (told) told.textContent = "";
  }
  read = chart || null;
  if (!chart) return;
  const points = (chart.dataset.points || "").split(" ").filter(Boolean).map((point) => point.split(","));
  if (!points.length) return;
  const box = chart.getBoundingClientRect();
  const part = ((pointer.x - box.left) / box.width) * 100;
  const near = points.reduce((best, point) => (Math.abs(point[0] - part) < Math.abs(best[0] - part) ? point : best));
  const cursor = find(".cursor", chart);
  cursor.setAttribute("x1", `${near[0]}%`);
  cursor.setAttribute("x2", `${near[0]}%`);
  cursor.setAttribute("visibility", "visible");
  find(".reading", chart.closest("figure")).textContent = `${near[1]}: ${near[2]} ${chart.dataset.unit}`;
}
function readings() {
  document.addEventListener("pointermove", (event) => {
    pointer = { x: event.clientX, y: event.clientY };
    readChart();
  });
  document.documentElement.addEventListener("pointerleave", () => {
    pointer = null;
    readChart();
  });
}

// Search: the list is filtered while someone types.
function search() {
  const field = find('input[type="search"]');
  if (!field) return;
  let waiting = null;
  let asked = null;
  const filter = async () => {
    asked?.abort();
    asked = new AbortController();
    const address = `${location.pathname}?${new URLSearchParams(new FormData(field.form))}`;
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, signal: asked.signal });
      if (!answer.ok || answer.redirected) return;
      const html = await answer.text();
      history.replaceState(null, "", address);
      const fresh = new DOMParser().parseFromString(html, "text/html");
      document.body.dataset.events = fresh.body.dataset.events;
      show(html);
      document.dispatchEvent(new Event("events-moved"));
    } catch (error) {
      if (error.name !== "AbortError") field.form.requestSubmit();
    }
  };
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 150);
  });
}

// A choice that needs no button.
function choices() {
  for (const select of findAll("select[data-submit]")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }
}

login();
themes();
choices();
search();
tellAges();
setInterval(tellAges, 1000);
live();
readings();
