"""Tables: random columns, keys, constraints, triggers and modes, as definitions that can be made twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tests.tables.cells import KINDS, Kind

from tidegate.tables import Mode, Table

MODES = [mode.value for mode in Mode]
ODD_NAMES = ["order", "a b", "50%", "ü", "Total", 'x"y', "c`d", "select"]


@dataclass(frozen=True)
class Field:
    """A column that records have values for."""

    name: str
    kind: Kind
    nullable: bool = True
    default: str | None = None


@dataclass(frozen=True)
class Extra:
    """Something that makes a table special. ``{t}`` is its name, ``{k}`` the type of the key.

    ``tables`` are others to be compared, by the ends of their names and the columns to compare; ``before`` makes them,
    ``after`` comes after the table, ``seed`` at the start of every case. ``unnamed``: it fails with a code that says
    nothing about values.
    """

    columns: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    seed: tuple[str, ...] = ()
    tables: Mapping[str, str] = field(default_factory=dict)
    options: str = ""
    field: str | None = None
    unique: bool = False
    unnamed: bool = False
    modes: frozenset[str] = frozenset(MODES)

    @property
    def places(self) -> set[str]:
        """What two extras of one table cannot both have."""
        found = {word for column in self.columns if (word := column.split()[0]).islower()}
        found |= {"trigger"} if any("TRIGGER" in each or "RULE" in each for each in self.after) else set()
        return found | set(self.tables) | ({self.field} if self.field else set())


def _audit(database: str) -> str:
    serial = {
        "postgres": "id SERIAL PRIMARY KEY",
        "mysql": "id INT AUTO_INCREMENT PRIMARY KEY",
        "mariadb": "id INT AUTO_INCREMENT PRIMARY KEY",
        "sqlite": "id INTEGER PRIMARY KEY",
    }
    return f"CREATE TABLE {{t}}_audit ({serial[database]}, what VARCHAR(20), n INT, total INT)"


def _function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {{t}}_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"


_OTHER_THAN_UPDATE = frozenset(MODES) - {"update"}
_SHARED: dict[str, Extra] = {
    "unique t": Extra(("UNIQUE (t)",), unique=True),
    "unique n": Extra(("UNIQUE (n)",), unique=True),
    "check": Extra(("CHECK (n <> 2)",)),
    "check two": Extra(("CHECK (t <> 'b' OR n < 5)",)),
    "parent": Extra(
        ("FOREIGN KEY (n) REFERENCES {t}_parent (id)",),
        before=("CREATE TABLE {t}_parent (id INT PRIMARY KEY)", "INSERT INTO {t}_parent VALUES (0), (1), (5), (10)"),
    ),
}
_CHILDREN = {
    f"child {what.lower()}": Extra(
        after=(f"CREATE TABLE {{t}}_child (k {{k}}, FOREIGN KEY (k) REFERENCES {{t}} (k) ON DELETE {what})",),
        seed=("INSERT INTO {t}_child (k) SELECT k FROM {t}",),
        tables={"_child": "k"},
    )
    for what in ("CASCADE", "RESTRICT", "SET NULL")
}
_ITSELF = {"itself": Extra(("FOREIGN KEY (r) REFERENCES {t} (k)",), field="r")}

EXTRAS: dict[str, dict[str, Extra]] = {
    "postgres": {
        **_SHARED,
        **_CHILDREN,
        **_ITSELF,
        "itself cascade": Extra(("FOREIGN KEY (r) REFERENCES {t} (k) ON DELETE CASCADE",), field="r"),
        "exclusion": Extra(("EXCLUDE USING gist (n WITH =)",), unique=True),
        "generated": Extra(("g INTEGER GENERATED ALWAYS AS (10 / n) STORED",)),
        "changing trigger": Extra(
            after=(
                _function("change", "NEW.n := NEW.n + 1; NEW.t := upper(NEW.t); RETURN NEW;"),
                "CREATE TRIGGER change BEFORE INSERT OR UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_change()",
            )
        ),
        "filling trigger": Extra(
            after=(
                _function("fill", "NEW.t := coalesce(NEW.t, 'f'); NEW.n := coalesce(NEW.n, 4); RETURN NEW;"),
                "CREATE TRIGGER fill BEFORE INSERT OR UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_fill()",
            )
        ),
        "skipping trigger": Extra(
            after=(
                _function("skip", "IF NEW.n = 2 THEN RETURN NULL; END IF; RETURN NEW;"),
                "CREATE TRIGGER skip BEFORE INSERT OR UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_skip()",
            )
        ),
        "counting before": Extra(
            before=(_audit("postgres"),),
            after=(
                _function(
                    "count",
                    "INSERT INTO {t}_audit (what, n, total) VALUES (TG_OP, NEW.n, (SELECT count(*) FROM {t}));"
                    " IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW;",
                ),
                "CREATE TRIGGER count BEFORE INSERT OR UPDATE OR DELETE ON {t} FOR EACH ROW "
                "EXECUTE FUNCTION {t}_count()",
            ),
            tables={"_audit": "what, n, total"},
        ),
        "counting after": Extra(
            before=(_audit("postgres"),),
            after=(
                _function(
                    "count",
                    "INSERT INTO {t}_audit (what, n, total) VALUES (TG_OP, NEW.n, (SELECT count(*) FROM {t}));"
                    " RETURN NULL;",
                ),
                "CREATE TRIGGER count AFTER INSERT OR UPDATE OR DELETE ON {t} FOR EACH ROW "
                "EXECUTE FUNCTION {t}_count()",
            ),
            tables={"_audit": "what, n, total"},
        ),
        "statement trigger": Extra(
            before=(_audit("postgres"),),
            after=(
                _function("count", "INSERT INTO {t}_audit (what, total) SELECT TG_OP, count(*) FROM {t}; RETURN NULL;"),
                "CREATE TRIGGER count AFTER INSERT ON {t} FOR EACH STATEMENT EXECUTE FUNCTION {t}_count()",
            ),
            tables={"_audit": "what, total"},
            modes=_OTHER_THAN_UPDATE,
        ),
        "raising": Extra(
            after=(
                _function("no", "IF NEW.n = 2 THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW;"),
                "CREATE TRIGGER no BEFORE INSERT OR UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_no()",
            )
        ),
        "raising its own": Extra(
            after=(
                _function("no", "IF NEW.n = 2 THEN RAISE EXCEPTION 'no' USING ERRCODE = 'ZZ001'; END IF; RETURN NEW;"),
                "CREATE TRIGGER no BEFORE INSERT OR UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_no()",
            ),
            unnamed=True,
        ),
        "rule": Extra(
            before=(_audit("postgres"),),
            after=(
                "CREATE RULE also AS ON INSERT TO {t} DO ALSO INSERT INTO {t}_audit (what, n) VALUES ('rule', NEW.n)",
            ),
            tables={"_audit": "what, n"},
            modes=frozenset({"append"}),
        ),
        "deferred unique": Extra(("UNIQUE (n) DEFERRABLE INITIALLY DEFERRED",), unique=True),
        "reading check": Extra(
            after=(
                "CREATE FUNCTION {t}_many() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM {t}'",
                "ALTER TABLE {t} ADD CHECK ({t}_many() < 3)",
            )
        ),
        "serial": Extra(("s SERIAL",)),
        "identity": Extra(("s BIGINT GENERATED BY DEFAULT AS IDENTITY",)),
        "volatile": Extra(("v TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()",)),
    },
    "mysql": {
        **_SHARED,
        **_CHILDREN,
        **_ITSELF,
        "generated": Extra(("g INTEGER GENERATED ALWAYS AS (10 - n) STORED",)),
        "filling trigger": Extra(
            after=tuple(
                f"CREATE TRIGGER {{t}}_{when} BEFORE {when} ON {{t}} FOR EACH ROW "
                "SET NEW.n = COALESCE(NEW.n, 4), NEW.t = COALESCE(NEW.t, 'f')"
                for when in ("insert", "update")
            ),
        ),
        "changing trigger": Extra(
            after=tuple(
                f"CREATE TRIGGER {{t}}_{when} BEFORE {when} ON {{t}} FOR EACH ROW "
                "SET NEW.n = NEW.n + 1, NEW.t = UPPER(NEW.t)"
                for when in ("insert", "update")
            ),
        ),
        "counting after": Extra(
            before=(_audit("mysql"),),
            after=tuple(
                f"CREATE TRIGGER {{t}}_{when} AFTER {when} ON {{t}} FOR EACH ROW INSERT INTO {{t}}_audit (what, n) "
                f"VALUES ('{when}', {row}.n)"
                for when, row in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD"))
            ),
            tables={"_audit": "what, n"},
        ),
        "raising": Extra(
            after=tuple(
                f"CREATE TRIGGER {{t}}_{when} BEFORE {when} ON {{t}} FOR EACH ROW BEGIN IF NEW.n = 2 THEN "
                "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF; END"
                for when in ("insert", "update")
            ),
        ),
        "raising its own": Extra(
            after=tuple(
                f"CREATE TRIGGER {{t}}_{when} BEFORE {when} ON {{t}} FOR EACH ROW BEGIN IF NEW.n = 2 THEN "
                "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = 31001; END IF; END"
                for when in ("insert", "update")
            ),
            unnamed=True,
        ),
        "serial": Extra(("s BIGINT NOT NULL AUTO_INCREMENT", "KEY (s)")),
    },
    "sqlite": {
        **_SHARED,
        **_CHILDREN,
        **_ITSELF,
        "itself cascade": Extra(("FOREIGN KEY (r) REFERENCES {t} (k) ON DELETE CASCADE",), field="r"),
        "generated": Extra(("g INTEGER GENERATED ALWAYS AS (abs(n)) STORED",), unnamed=True),
        "changing trigger": Extra(
            after=(
                "CREATE TRIGGER {t}_change AFTER INSERT ON {t} FOR EACH ROW BEGIN "
                "UPDATE {t} SET t = upper(t) WHERE rowid = NEW.rowid; END",
            ),
        ),
        "counting after": Extra(
            before=(_audit("sqlite"),),
            after=tuple(
                f"CREATE TRIGGER {{t}}_{when} AFTER {when} ON {{t}} FOR EACH ROW BEGIN INSERT INTO {{t}}_audit "
                f"(what, n, total) SELECT '{when}', {row}.n, count(*) FROM {{t}}; END"
                for when, row in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD"))
            ),
            tables={"_audit": "what, n, total"},
        ),
        "raising": Extra(
            after=tuple(
                f"CREATE TRIGGER {{t}}_no_{when} BEFORE {when} ON {{t}} FOR EACH ROW WHEN NEW.n = 2 BEGIN "
                "SELECT RAISE(ABORT, 'no'); END"
                for when in ("insert", "update")
            ),
        ),
    },
}
EXTRAS["mariadb"] = EXTRAS["mysql"]
EXTRAS["mysql"] = {**EXTRAS["mysql"], "expression index": Extra(("KEY ((CAST(t AS SIGNED)))",))}


@dataclass(frozen=True)
class Spec:
    """A table's definition, and how records go into it."""

    database: str
    mode: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    constraint: str = "PRIMARY KEY"
    extras: tuple[str, ...] = ()
    tombstones: str | None = None
    unknown: str = "ignore"
    ignores_case: bool = True
    options: str = ""

    @property
    def parts(self) -> list[Extra]:
        return [EXTRAS[self.database][name] for name in self.extras]

    @property
    def by_name(self) -> dict[str, Field]:
        return {each.name: each for each in self.fields}

    @property
    def has_second_key(self) -> bool:
        return any(each.unique for each in self.parts)

    @property
    def has_unnamed_errors(self) -> bool:
        return any(each.unnamed for each in self.parts) or any(each.kind.unnamed for each in self.fields)

    @property
    def on_tombstone(self) -> str:
        return self.tombstones or ("delete" if self.mode == "upsert" else "refuse")

    @property
    def refers(self) -> bool:
        """Whether it has foreign keys, which a ledger leaves off on SQLite."""
        return any("FOREIGN KEY" in text for each in self.parts for text in (*each.columns, *each.after))

    @property
    def added(self) -> list[str]:
        if self.mode != "accumulate":
            return []
        return [each.name for each in self.fields if each.kind.adds and each.name not in self.key]

    def table(self, name: str) -> Table:
        """As a user describes it."""
        key = () if self.mode == "append" else self.key
        return Table(
            name,
            key=key,
            mode=self.mode,
            add=self.added,
            tombstones=self.tombstones,
            unknown=self.unknown,
            ignore_case=self.ignores_case,
        )

    def definition(self, name: str) -> Iterator[str]:
        """The statements that make the table and all around it."""
        parts = [self._column(each) for each in self.fields]
        others = [column for extra in self.parts for column in extra.columns]
        parts += [column for column in others if column.split()[0].islower()]
        if self.constraint:
            parts.append(f"{self.constraint} ({', '.join(map(self.quote, self.key))})")
        parts += [column for column in others if not column.split()[0].islower()]
        options = self.options or (" ENGINE=InnoDB" if self.database in ("mysql", "mariadb") else "")
        statements = [statement for extra in self.parts for statement in extra.before]
        statements.append(f"CREATE TABLE {{t}} ({', '.join(parts)}){options}")
        statements += [statement for extra in self.parts for statement in extra.after]
        for statement in statements:
            yield statement.replace("{t}", name).replace("{k}", self.by_name[self.key[0]].kind.sql)

    def quote(self, name: str) -> str:
        mark = "`" if self.database in ("mysql", "mariadb") else '"'
        return mark + name.replace(mark, mark * 2) + mark

    def _column(self, each: Field) -> str:
        null = "" if each.nullable else " NOT NULL"
        default = "" if each.default is None else f" DEFAULT {each.default}"
        return f"{self.quote(each.name)} {each.kind.sql}{default}{null}"

    def __str__(self) -> str:
        told = f"tombstones {self.tombstones}, unknown {self.unknown}, ignore_case {self.ignores_case}"
        return f"{self.database}, mode {self.mode}, {told}:\n  " + ";\n  ".join(self.definition("t"))


def random_spec(rng: random.Random, database: str, mode: str | None = None) -> Spec:
    """Any table that the database can have."""
    kinds = KINDS[database]
    mode = mode or rng.choice(MODES)
    key_kinds = [kind for kind in kinds.values() if kind.keys]
    key = [Field("k", rng.choice(key_kinds), nullable=False)]
    if rng.random() < 0.2:
        key.append(Field("k2", kinds["integer"], nullable=False))
    plain = [_varied(rng, "n", kinds[rng.choice(("integer", "bigint") if mode == "accumulate" else ("integer",))])]
    plain.append(_varied(rng, "t", kinds[rng.choice([each for each in kinds if _is_short_text(each)])]))
    names = rng.sample(ODD_NAMES, 2)
    plain += [_varied(rng, name, rng.choice(list(kinds.values()))) for name in names[: rng.randrange(3)]]
    extras = _chosen(rng, database, mode, len(key))
    if key[0].kind.sql == "VARCHAR(3)[]":  # PostgreSQL has no operator to check references to such a key
        extras = tuple(name for name in extras if not name.startswith(("child", "itself")))
    if "parent" in extras:  # whose keys are of that type
        plain[0] = replace(plain[0], kind=kinds["integer"])
    for name in extras:
        if EXTRAS[database][name].field:
            plain.append(Field("r", key[0].kind))
    spec = Spec(
        database,
        mode,
        (*key, *plain),
        tuple(each.name for each in key),
        constraint=rng.choice(["PRIMARY KEY", "PRIMARY KEY", "UNIQUE"]),
        extras=extras,
        tombstones=rng.choice(_tombstones(mode)),
        unknown=rng.choice(["ignore"] * 5 + ["refuse"]),
        ignores_case=rng.random() < 0.9,
    )
    if mode == "append" and not extras and rng.random() < 0.4:
        spec = replace(spec, constraint="")
    if database == "sqlite" and "PRIMARY" in spec.constraint and not extras and rng.random() < 0.2:
        spec = replace(spec, options=" WITHOUT ROWID")
    return spec


def _tombstones(mode: str) -> list[str | None]:
    if mode == "append":
        return [None, None, "ignore"]
    return [None, "delete", "delete", "ignore"]


def _is_short_text(name: str) -> bool:
    return name in {"text", "varchar", "caseless", "citext", "exact", "nocase", "rtrim"}


def _varied(rng: random.Random, name: str, kind: Kind) -> Field:
    """Nullable or not, with a default or not."""
    if kind.default is None or rng.random() < 0.5:
        return Field(name, kind, nullable=rng.random() < 0.8)
    return Field(name, kind, nullable=rng.random() < 0.5, default=kind.default)


def _chosen(rng: random.Random, database: str, mode: str, width: int) -> tuple[str, ...]:
    """Half of all tables are plain ones."""
    chosen: list[str] = []
    if rng.random() < 0.5:
        return ()
    can = {name: each for name, each in EXTRAS[database].items() if mode in each.modes}
    if width > 1:
        can = {name: each for name, each in can.items() if not each.field and not name.startswith("child")}
    taken: set[str] = set()
    for name in rng.sample(sorted(can), min(len(can), rng.choice((1, 1, 2, 3)))):
        if not taken & can[name].places:
            chosen.append(name)
            taken |= can[name].places
    if database in ("mysql", "mariadb") and any(can[name].unique for name in chosen):
        chosen = [name for name in chosen if "trigger" not in can[name].places]
    return tuple(chosen)
