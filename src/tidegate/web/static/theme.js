"use strict";
// Loaded before the page is drawn, so that a chosen theme does not flash the other one first.
try {
  const chosen = localStorage.getItem("tidegate-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's choice holds.
}
