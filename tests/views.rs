//! Random views over random tables: after every statement each view equals the same SELECT.
//!
//! Prints its seed; `CLINK_SEED` runs one again. `CLINK_LONG` makes it long; `CLINK_TEST_STATE` is that of `tests/sql.rs`.

mod support;

use clink::env::Env;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use support::{Database, canonical, steps};

/// Columns of a relation, by type.
#[derive(Clone)]
struct Shape {
    /// What stands behind FROM in the view.
    from: String,
    /// What stands there when the view's query is run by itself.
    expanded: String,
    texts: Vec<String>,
    numbers: Vec<String>,
    doubles: Vec<String>,
    booleans: Vec<String>,
    /// Too many rows to be joined: it comes from a join itself.
    wide: bool,
}

fn table(name: &str) -> Shape {
    let owned = |columns: &[&str]| columns.iter().map(|column| (*column).to_owned()).collect();
    Shape {
        from: name.to_owned(),
        expanded: name.to_owned(),
        texts: owned(&["k", "w"]),
        numbers: owned(&["a", "b", "n"]),
        doubles: owned(&["d"]),
        booleans: owned(&["f"]),
        wide: false,
    }
}

struct Generator {
    random: StdRng,
}

impl Generator {
    fn pick<'a>(&mut self, items: &'a [String]) -> &'a str {
        items.choose(&mut self.random).map_or("NULL", String::as_str)
    }

    fn number(&mut self, shape: &Shape) -> String {
        let column = self.pick(&shape.numbers).to_owned();
        match self.random.random_range(0..7) {
            0 => format!("{column} + {}", self.random.random_range(1..5)),
            1 => format!("{column} * {}", self.random.random_range(-2..3)),
            2 => format!("coalesce({column}, {})", self.random.random_range(0..4)),
            3 => {
                let condition = self.condition(shape);
                format!("CASE WHEN {condition} THEN {column} ELSE 0 END")
            }
            _ => column,
        }
    }

    fn condition(&mut self, shape: &Shape) -> String {
        let number = self.pick(&shape.numbers).to_owned();
        let text = self.pick(&shape.texts).to_owned();
        match self.random.random_range(0..8) {
            0 => format!("{number} IS NOT NULL"),
            1 => format!("{number} > {}", self.random.random_range(0..8)),
            2 => format!("{number} BETWEEN 1 AND {}", self.random.random_range(2..9)),
            3 => format!("{text} IN ('p', 'q')"),
            4 => format!("{text} <> 'r' OR {text} IS NULL"),
            5 => format!("NOT ({number} = {})", self.random.random_range(0..8)),
            6 if !shape.booleans.is_empty() => self.pick(&shape.booleans).to_owned(),
            _ => format!("{number} <= {} AND {text} IS NOT NULL", self.random.random_range(2..9)),
        }
    }

    fn filter(&mut self, shape: &Shape) -> String {
        if self.random.random_bool(0.5) { format!(" WHERE {}", self.condition(shape)) } else { String::new() }
    }

    /// An aggregate and whether its result is a double.
    fn aggregate(&mut self, shape: &Shape) -> (String, bool) {
        let distinct = if self.random.random_bool(0.3) { "DISTINCT " } else { "" };
        let number = self.number(shape);
        let text = self.pick(&shape.texts).to_owned();
        let double = self.pick(&shape.doubles).to_owned();
        let (call, is_double) = match self.random.random_range(0..13) {
            0 => ("count(*)".to_owned(), false),
            1 => (format!("count({distinct}{number})"), false),
            2 => (format!("count({distinct}{text})"), false),
            3 => (format!("sum({distinct}{number})"), false),
            4 => (format!("avg({distinct}{number})"), false),
            5 => (format!("min({number})"), false),
            6 => (format!("max({text})"), false),
            7 => (format!("bool_and({number} > 2)"), false),
            8 => (format!("bool_or({number} > 6)"), false),
            9 => (format!("stddev_pop({distinct}{number})"), true),
            10 => (format!("string_agg({distinct}{text}, '-')"), false),
            11 if double != "NULL" => (format!("sum({double})"), true),
            _ => (format!("array_agg({distinct}{text})"), false),
        };
        if self.random.random_bool(0.25) {
            let condition = self.condition(shape);
            return (format!("{call} FILTER (WHERE {condition})"), is_double);
        }
        (call, is_double)
    }

    /// A view's query and the shape of its result, named `name`.
    fn view(&mut self, name: &str, inputs: &[Shape]) -> (String, Shape) {
        let shape = inputs.choose(&mut self.random).expect("tables").clone();
        let filter = self.filter(&shape);
        let mut result = Shape {
            from: name.to_owned(),
            expanded: String::new(),
            texts: Vec::new(),
            numbers: Vec::new(),
            doubles: Vec::new(),
            booleans: Vec::new(),
            wide: shape.wide,
        };
        if self.random.random_bool(0.25) {
            return self.join(result, inputs);
        }
        let text = self.pick(&shape.texts).to_owned();
        let query = match self.random.random_range(0..8) {
            0 => {
                result.texts.push("t".to_owned());
                result.numbers.push("x".to_owned());
                let number = self.number(&shape);
                format!("SELECT {text} || 'z' AS t, {number} AS x FROM {{}}{filter}")
            }
            1 => {
                result.texts.push("t".to_owned());
                result.numbers.push("x".to_owned());
                let number = self.pick(&shape.numbers).to_owned();
                format!("SELECT DISTINCT {text} AS t, {number} AS x FROM {{}}{filter}")
            }
            2 => {
                let calls: Vec<String> = (0..3)
                    .map(|position| {
                        let (call, is_double) = self.aggregate(&shape);
                        let column = format!("g{position}");
                        let countable = call.starts_with("count") || call.starts_with("sum");
                        if countable && !is_double {
                            result.numbers.push(column.clone());
                        }
                        format!("{call} AS {column}")
                    })
                    .collect();
                result.texts.push("'one'".to_owned());
                result.numbers.push("1".to_owned());
                format!("SELECT {} FROM {{}}{filter}", calls.join(", "))
            }
            4 => {
                result.texts.push("t".to_owned());
                result.numbers.push("x".to_owned());
                result.wide = false;
                let number = self.pick(&shape.numbers).to_owned();
                // Rows that the order does not tell apart are equal.
                match self.random.random_range(0..3) {
                    0 => format!("SELECT {text} AS t, {number} AS x FROM {{}}{filter} ORDER BY x DESC, t LIMIT 4"),
                    1 => format!("SELECT {text} AS t, {number} AS x FROM {{}}{filter} ORDER BY t, x LIMIT 3 OFFSET 2"),
                    _ => format!(
                        "SELECT DISTINCT ON ({text}) {text} AS t, {number} AS x FROM {{}}{filter} ORDER BY {text}, {number}"
                    ),
                }
            }
            5 => {
                result.texts.push("t".to_owned());
                result.numbers.push("x".to_owned());
                let number = self.pick(&shape.numbers).to_owned();
                let calls =
                    ["row_number()", "rank()", "dense_rank()", "sum(a0)", "count(*)", "lag(a0)", "last_value(a0)"];
                let call = calls[self.random.random_range(0..calls.len())];
                let window = ["PARTITION BY t ORDER BY a0", "PARTITION BY t ORDER BY a0 DESC", "ORDER BY a0, t"]
                    [self.random.random_range(0..3)];
                format!(
                    "SELECT t, a0 AS x, {call} OVER ({window}) AS w FROM (SELECT {text} AS t, {number} AS a0 FROM {{}}{filter}) AS i"
                )
            }
            3 => {
                result.texts.push("t".to_owned());
                result.numbers.push("x".to_owned());
                let (first, second) = (self.number(&shape), self.pick(&shape.numbers).to_owned());
                let other = self.filter(&shape);
                format!(
                    "SELECT {text} AS t, {first} AS x FROM {{}}{filter} UNION ALL SELECT 'u', {second} FROM {{}}{other}"
                )
            }
            _ => {
                result.wide = false;
                result.texts.push("t".to_owned());
                let (first, first_double) = self.aggregate(&shape);
                let (second, _) = self.aggregate(&shape);
                result.numbers.push("c".to_owned());
                if (first.starts_with("count") || first.starts_with("sum")) && !first_double {
                    result.numbers.push("x".to_owned());
                }
                let having =
                    if self.random.random_bool(0.3) { " HAVING count(*) > 1".to_owned() } else { String::new() };
                format!(
                    "SELECT {text} AS t, count(*) AS c, {first} AS x, {second} AS y FROM {{}}{filter} GROUP BY {text}{having}"
                )
            }
        };
        let own = query.replace("{}", &shape.from);
        let expanded = query.replace("{}", &shape.expanded);
        result.expanded = format!("({expanded}) AS {name}");
        (own, result)
    }

    /// A view that joins two relations, keeps the rows of one by what the other has, or is a set operation of both.
    fn join(&mut self, mut result: Shape, inputs: &[Shape]) -> (String, Shape) {
        let narrow: Vec<&Shape> = inputs.iter().filter(|shape| !shape.wide).collect();
        let [left, right] = [0, 1].map(|_| (*narrow.choose(&mut self.random).expect("tables")).clone());
        let mut side = |shape: &Shape, prefix: &str| {
            let (text, number) = (self.pick(&shape.texts).to_owned(), self.pick(&shape.numbers).to_owned());
            let filter = self.filter(shape);
            let query = |from: &str| format!("(SELECT {text} AS {prefix}t, {number} AS {prefix}x FROM {from}{filter})");
            [query(&shape.from), query(&shape.expanded)]
        };
        let (left, right) = (side(&left, "l"), side(&right, "r"));
        let mut on =
            ["l.lt = r.rt", "l.lx = r.rx", "l.lt = r.rt AND l.lx = r.rx"][self.random.random_range(0..3)].to_owned();
        if self.random.random_bool(0.4) {
            on.push_str([" AND l.lx < r.rx", " AND l.lx + r.rx > 5", " AND r.rx <> 3"][self.random.random_range(0..3)]);
        }
        let kind = self.random.random_range(0..10);
        let set = ["EXCEPT ALL", "INTERSECT ALL", "EXCEPT", "INTERSECT"][self.random.random_range(0..4)];
        let query = |left: &str, right: &str| match kind {
            0 | 1 => format!("SELECT lt AS t, lx AS x, rt AS u, rx AS y FROM {left} l JOIN {right} r ON {on}"),
            2 => format!("SELECT lt AS t, lx AS x, rt AS u, rx AS y FROM {left} l LEFT JOIN {right} r ON {on}"),
            3 => format!("SELECT lt AS t, lx AS x, rt AS u, rx AS y FROM {left} l RIGHT JOIN {right} r ON {on}"),
            4 => format!("SELECT lt AS t, lx AS x, rt AS u, rx AS y FROM {left} l FULL JOIN {right} r ON {on}"),
            5 => format!("SELECT lt AS t, lx AS x FROM {left} l WHERE EXISTS (SELECT 1 FROM {right} r WHERE {on})"),
            6 => format!("SELECT lt AS t, lx AS x FROM {left} l WHERE NOT EXISTS (SELECT 1 FROM {right} r WHERE {on})"),
            7 => format!("SELECT lt AS t, lx AS x FROM {left} l WHERE lx IN (SELECT rx FROM {right} r)"),
            _ => format!("SELECT lt AS t, lx AS x FROM {left} l {set} SELECT rt, rx FROM {right} r"),
        };
        result.texts.push("t".to_owned());
        result.numbers.push("x".to_owned());
        result.wide = kind < 5;
        let name = &result.from;
        let own = query(&left[0], &right[0]);
        result.expanded = format!("({}) AS {name}", query(&left[1], &right[1]));
        (own, result)
    }

    fn value(&mut self, kind: &str) -> String {
        if self.random.random_bool(0.15) {
            return "NULL".to_owned();
        }
        match kind {
            "text" => format!("'{}'", ["p", "q", "r", "", "s s"].choose(&mut self.random).expect("some")),
            "bool" => self.random.random_bool(0.5).to_string(),
            "double" => format!("{}e0", f64::from(self.random.random_range(-20..20)) * 0.25),
            "numeric" => format!("{}.{:02}", self.random.random_range(-3..9), self.random.random_range(0..100)),
            _ => self.random.random_range(-2..10).to_string(),
        }
    }

    fn row(&mut self) -> String {
        let values: Vec<String> =
            ["text", "text", "int", "int", "numeric", "double", "bool"].iter().map(|kind| self.value(kind)).collect();
        values.join(", ")
    }

    /// A statement that changes a table: `p` has a primary key, `q` has none.
    fn change(&mut self) -> String {
        let shape = table("p");
        let condition = self.condition(&shape);
        let target = if self.random.random_bool(0.5) { "p" } else { "q" };
        match self.random.random_range(0..12) {
            0..=3 => {
                let rows: Vec<String> = (0..self.random.random_range(1..5))
                    .map(|_| {
                        let id = self.random.random_range(0..40);
                        format!("({id}, {})", self.row())
                    })
                    .collect();
                format!("INSERT INTO q VALUES {}", rows.join(", "))
            }
            4 | 5 => {
                let id = self.random.random_range(0..40);
                let row = self.row();
                format!(
                    "INSERT INTO p VALUES ({id}, {row}) ON CONFLICT (id) DO UPDATE SET k = excluded.k, a = excluded.a, d = excluded.d"
                )
            }
            6 => {
                let id = self.random.random_range(0..40);
                let row = self.row();
                format!("INSERT INTO p VALUES ({id}, {row}) ON CONFLICT DO NOTHING")
            }
            7 => {
                let (text, number) = (self.value("text"), self.value("int"));
                format!("UPDATE {target} SET k = {text}, b = {number} WHERE {condition}")
            }
            8 => format!("UPDATE {target} SET a = a + 1, d = d * 2 WHERE id % 5 = {}", self.random.random_range(0..5)),
            9 => format!("DELETE FROM {target} WHERE id % 7 = {} AND ({condition})", self.random.random_range(0..7)),
            10 if self.random.random_bool(0.2) => format!("TRUNCATE {target}"),
            10 => format!("DELETE FROM {target} WHERE id = {}", self.random.random_range(0..40)),
            _ => format!("INSERT INTO q SELECT id, k, w, a, b, n, d, f FROM p WHERE {condition} AND id < 12"),
        }
    }
}

async fn check(database: &mut Database, views: &[(String, Shape)], context: &str) {
    for (query, shape) in views {
        let shown = canonical(database.run(&format!("SELECT * FROM {}", shape.from)).await);
        let expected = canonical(database.run(&format!("SELECT * FROM {}", shape.expanded)).await);
        assert_eq!(shown, expected, "{context}\nview {} AS {query}\nSELECT * FROM {}", shape.from, shape.expanded);
    }
}

/// Ten views, half of them made when rows are there; `changes` statements.
async fn round(seed: u64, workers: usize, changes: usize) {
    eprintln!("views: seed {seed}, {workers} workers, {changes} statements");
    let directory = tempfile::tempdir().expect("a directory");
    let mut generator = Generator { random: StdRng::seed_from_u64(seed) };
    let mut database = Database::open(directory.path(), workers, Env::system()).await;
    let columns = "k text, w text, a int, b bigint, n numeric(10,2), d double precision, f boolean";
    database.run(&format!("CREATE TABLE p (id int PRIMARY KEY, {columns})")).await;
    database.run(&format!("CREATE TABLE q (id int, {columns})")).await;
    let mut inputs = vec![table("p"), table("q"), table("q")];
    let mut views: Vec<(String, Shape)> = Vec::new();
    for step in 0..changes {
        while views.len() < 5 || (views.len() < 10 && step >= changes / 3) {
            let name = format!("v{}", views.len());
            let (query, shape) = generator.view(&name, &inputs);
            database.run(&format!("CREATE MATERIALIZED VIEW {name} AS {query}")).await;
            inputs.push(shape.clone());
            views.push((query, shape));
        }
        let change = generator.change();
        // A random number may be too great for its column: refused as a whole, so nothing changes.
        let outcome = database.try_run(&change).await;
        check(&mut database, &views, &format!("seed {seed}, step {step}: {change}\n{outcome:?}")).await;
        if step == changes / 2 {
            database.run("CHECKPOINT").await;
        }
        if step == changes * 2 / 3 {
            // The views go on from the checkpoint, on another number of workers.
            database.engine.close().await;
            database = Database::open(directory.path(), 1 + workers, Env::system()).await;
            check(&mut database, &views, &format!("seed {seed}, step {step}, from the checkpoint")).await;
            let restored = database.run("SELECT jobs FROM clink_catalog.checkpoints WHERE restored").await;
            assert_eq!(restored, [["12"]], "seed {seed}: two tables and ten views");
            database.run("CHECKPOINT").await;
        }
    }
    database.engine.close().await;
    // The views go on again, with what changed since.
    let mut database = Database::open(directory.path(), 4 - workers, Env::system()).await;
    check(&mut database, &views, &format!("seed {seed}, opened again")).await;
    database.engine.close().await;
}

const ROUNDS: u64 = 12;

/// Every second round: two tests run beside one another.
async fn rounds(first: u64) {
    let seed = std::env::var("CLINK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_130);
    let changes = steps(2_000, 50_000) / ROUNDS as usize;
    for position in (first..ROUNDS).step_by(2) {
        round(seed + position, 1 + (position as usize % 3), changes + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_view_equals_its_query_after_every_statement_in_even_rounds() {
    rounds(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_view_equals_its_query_after_every_statement_in_odd_rounds() {
    rounds(1).await;
}
