//! PostgreSQL's own types and functions by number, out of the library's tables.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arrow::array::{Array as _, AsArray as _, BooleanArray, Int32Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use datafusion_pg_catalog::pg_catalog::PgCatalogStaticTables;

use crate::sql::quote_ident;

/// What is known of PostgreSQL's own objects.
#[derive(Default)]
pub(super) struct BuiltIn {
    types: HashMap<i32, Type>,
    functions: HashMap<i32, Function>,
    /// The numbers of the functions of a name.
    names: HashMap<String, Vec<i32>>,
}

struct Type {
    name: String,
    /// The type of the elements of an array.
    element: Option<i32>,
}

struct Function {
    result: i32,
    is_set: bool,
    arguments: Vec<Argument>,
}

struct Argument {
    mode: char,
    name: String,
    data_type: i32,
}

/// The library's tables.
pub(super) fn tables() -> Option<&'static Arc<PgCatalogStaticTables>> {
    static TABLES: OnceLock<Option<Arc<PgCatalogStaticTables>>> = OnceLock::new();
    TABLES.get_or_init(|| PgCatalogStaticTables::try_new().ok().map(Arc::new)).as_ref()
}

/// PostgreSQL's own objects, read once.
pub(super) fn built_in() -> &'static BuiltIn {
    static BUILT_IN: OnceLock<BuiltIn> = OnceLock::new();
    BUILT_IN.get_or_init(|| {
        let mut known = BuiltIn::default();
        if let Some(tables) = tables() {
            tables.pg_type.data().iter().for_each(|rows| known.add_types(rows).unwrap_or_default());
            tables.pg_proc.data().iter().for_each(|rows| known.add_functions(rows).unwrap_or_default());
        }
        known
    })
}

fn numbers(rows: &RecordBatch, name: &str) -> Option<Int32Array> {
    Some(cast(rows.column_by_name(name)?, &DataType::Int32).ok()?.as_primitive::<Int32Type>().clone())
}

fn texts(rows: &RecordBatch, name: &str) -> Option<StringArray> {
    Some(cast(rows.column_by_name(name)?, &DataType::Utf8).ok()?.as_string::<i32>().clone())
}

fn flags(rows: &RecordBatch, name: &str) -> Option<BooleanArray> {
    Some(rows.column_by_name(name)?.as_boolean_opt()?.clone())
}

/// The words of an array's or a vector's text: `[25, 25]`, `['i', 'o']`, `25 25`.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let separator = |c: char| matches!(c, '[' | ']' | '{' | '}' | ',' | ' ' | '\'');
    text.split(separator).filter(|word| !word.is_empty())
}

impl BuiltIn {
    fn add_types(&mut self, rows: &RecordBatch) -> Option<()> {
        let (oids, names, elements) = (numbers(rows, "oid")?, texts(rows, "typname")?, numbers(rows, "typelem")?);
        for row in 0..rows.num_rows() {
            let name = names.value(row).to_owned();
            let element = name.starts_with('_').then(|| elements.value(row)).filter(|element| *element != 0);
            self.types.insert(oids.value(row), Type { name, element });
        }
        Some(())
    }

    fn add_functions(&mut self, rows: &RecordBatch) -> Option<()> {
        let (oids, names, results) = (numbers(rows, "oid")?, texts(rows, "proname")?, numbers(rows, "prorettype")?);
        let (sets, inputs) = (flags(rows, "proretset")?, texts(rows, "proargtypes")?);
        let (all, modes, called) =
            (texts(rows, "proallargtypes")?, texts(rows, "proargmodes")?, texts(rows, "proargnames")?);
        let text = |column: &StringArray, row: usize| column.is_valid(row).then(|| column.value(row).to_owned());
        for row in 0..rows.num_rows() {
            let types = text(&all, row).unwrap_or_else(|| inputs.value(row).to_owned());
            let (modes, called) = (text(&modes, row).unwrap_or_default(), text(&called, row).unwrap_or_default());
            let modes: Vec<&str> = words(&modes).collect();
            // A name may be empty, so the list is not cut at its blanks.
            let called: Vec<&str> =
                called.split(',').map(|name| name.trim_matches(|c: char| "[]{}' ".contains(c))).collect();
            let arguments = words(&types).enumerate().filter_map(|(at, data_type)| {
                Some(Argument {
                    mode: modes.get(at).and_then(|mode| mode.chars().next()).unwrap_or('i'),
                    name: called.get(at).copied().unwrap_or_default().to_owned(),
                    data_type: data_type.parse().ok()?,
                })
            });
            let function =
                Function { result: results.value(row), is_set: sets.value(row), arguments: arguments.collect() };
            let oid = oids.value(row);
            self.functions.insert(oid, function);
            self.names.entry(names.value(row).to_owned()).or_default().push(oid);
        }
        Some(())
    }

    /// A type as PostgreSQL's `format_type` shows it.
    pub(super) fn type_name(&self, oid: i32, modifier: Option<i32>) -> String {
        let Some(found) = self.types.get(&oid) else {
            return if oid == 0 { "-".to_owned() } else { "???".to_owned() };
        };
        if let Some(element) = found.element {
            return format!("{}[]", self.type_name(element, modifier));
        }
        let modifier = modifier.filter(|modifier| *modifier >= 0);
        let with_length = |name: &str| match modifier {
            Some(modifier) if modifier > 4 => format!("{name}({})", modifier - 4),
            _ => name.to_owned(),
        };
        let with_precision = |name: &str, zone: &str| match modifier {
            Some(precision) => format!("{name}({precision}) {zone} time zone"),
            None => format!("{name} {zone} time zone"),
        };
        match found.name.as_str() {
            "bool" => "boolean".into(),
            "char" => "\"char\"".into(),
            "int2" => "smallint".into(),
            "int4" => "integer".into(),
            "int8" => "bigint".into(),
            "float4" => "real".into(),
            "float8" => "double precision".into(),
            "bit" => "bit".into(),
            "varbit" => "bit varying".into(),
            "interval" => "interval".into(),
            "bpchar" => with_length("character"),
            "varchar" => with_length("character varying"),
            "time" => with_precision("time", "without"),
            "timetz" => with_precision("time", "with"),
            "timestamp" => with_precision("timestamp", "without"),
            "timestamptz" => with_precision("timestamp", "with"),
            "numeric" => match modifier.map(|modifier| modifier - 4) {
                Some(digits) if digits >= 0 => format!("numeric({},{})", (digits >> 16) & 0xffff, digits & 0xffff),
                _ => "numeric".into(),
            },
            name => quote_ident(name),
        }
    }

    /// What a function gives.
    pub(super) fn result(&self, oid: i32) -> Option<String> {
        let function = self.functions.get(&oid)?;
        let result = self.type_name(function.result, None);
        Some(if function.is_set { format!("SETOF {result}") } else { result })
    }

    /// What a function takes; with `all`, what it gives by its arguments too.
    pub(super) fn arguments(&self, oid: i32, all: bool) -> Option<String> {
        let shown = self.functions.get(&oid)?.arguments.iter().filter_map(|argument| {
            let mode = match argument.mode {
                'o' | 't' if !all => return None,
                'o' => "OUT ",
                'b' => "INOUT ",
                'v' => "VARIADIC ",
                't' => return None,
                _ => "",
            };
            let name = match argument.name.as_str() {
                "" => String::new(),
                name => format!("{} ", quote_ident(name)),
            };
            Some(format!("{mode}{name}{}", self.type_name(argument.data_type, None)))
        });
        Some(shown.collect::<Vec<_>>().join(", "))
    }

    /// The functions of a name.
    pub(super) fn named(&self, name: &str) -> &[i32] {
        self.names.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_functions_are_shown_as_in_postgresql() {
        let known = built_in();
        for (oid, modifier, wanted) in [
            (23, None, "integer"),
            (1007, None, "integer[]"),
            (1700, Some(4 + (12 << 16) + 2), "numeric(12,2)"),
            (1043, Some(24), "character varying(20)"),
            (1184, None, "timestamp with time zone"),
            (600, None, "point"),
            (18, None, "\"char\""),
            (2276, None, "\"any\""),
            (0, None, "-"),
            (1, None, "???"),
        ] {
            assert_eq!(known.type_name(oid, modifier), wanted);
        }
        let [oid] = known.named("json_each") else { panic!("one function") };
        assert_eq!(known.result(*oid).expect("a function"), "SETOF record");
        assert_eq!(known.arguments(*oid, true).expect("a function"), "from_json json, OUT key text, OUT value json");
        assert_eq!(known.arguments(*oid, false).expect("a function"), "from_json json");
        let [oid] = known.named("concat") else { panic!("one function") };
        assert_eq!(known.arguments(*oid, true).expect("a function"), "VARIADIC \"any\"");
        assert!(known.named("lower").len() > 1);
    }
}
