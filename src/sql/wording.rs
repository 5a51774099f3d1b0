//! PostgreSQL's words in the place of the planner's: types, literals and names of tables in its messages.

use arrow::datatypes::DataType;

use super::types::sql_name;

/// A message of DataFusion or arrow without words of their own.
pub(crate) fn reworded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let word_end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        if word_end == 0 || before.is_alphanumeric() || before == '_' {
            out.push(first);
            before = first;
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let (word, mut after) = rest.split_at(word_end);
        if word == "clink"
            && let Some(name) = after.strip_prefix('.')
            && name.split_once('.').is_some_and(|(schema, _)| !schema.is_empty() && schema.chars().all(is_name))
        {
            rest = name.strip_prefix("public.").unwrap_or(name);
            before = '.';
            continue;
        }
        let arguments = after.strip_prefix('(').and_then(enclosed);
        match replaced(word, arguments) {
            Some(words) => {
                out.push_str(&words);
                if let Some(arguments) = arguments {
                    after = after.get(arguments.len() + 2..).unwrap_or_default();
                }
            }
            None => out.push_str(word),
        }
        before = 'x';
        rest = after;
    }
    out.replace("count(1)", "count(*)")
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// What stands before the parenthesis that closes one opened just before.
fn enclosed(text: &str) -> Option<&str> {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(..at);
        }
    }
    None
}

/// What stands for a type or a literal; `None` for other words.
fn replaced(word: &str, arguments: Option<&str>) -> Option<String> {
    const BARE: &[&str] = &[
        "Boolean",
        "Int8",
        "Int16",
        "Int32",
        "Int64",
        "UInt8",
        "UInt16",
        "UInt32",
        "UInt64",
        "Float16",
        "Float32",
        "Float64",
        "Utf8",
        "LargeUtf8",
        "Utf8View",
        "LargeBinary",
        "BinaryView",
        "Date32",
        "Date64",
    ];
    let Some(arguments) = arguments else {
        if word == "Null" {
            return Some("unknown".into());
        }
        return BARE.contains(&word).then(|| word.parse().ok().map(|found: DataType| sql_name(&found)))?;
    };
    let first = arguments.split(", ").next().unwrap_or(arguments);
    Some(match word {
        "Timestamp" if arguments.contains(['"', '+']) => "timestamptz".into(),
        "Timestamp" => "timestamp".into(),
        "Time32" | "Time64" => "time".into(),
        "Interval" | "Duration" => "interval".into(),
        "FixedSizeBinary" => if first == "16" { "uuid" } else { "bytea" }.into(),
        "List" | "LargeList" | "FixedSizeList" => {
            let element = arguments.rsplit_once(", field:").map_or(arguments, |(element, _)| element);
            let element = element.split("data_type: ").nth(1).map_or(element, |of| of.split(", ").next().unwrap_or(of));
            format!("{}[]", reworded(element))
        }
        "Decimal128" | "Decimal256" => match arguments.strip_prefix("Some(").and_then(|rest| rest.split_once(')')) {
            Some((digits, type_of)) => decimal(digits, type_of),
            None => format!("{word}({arguments})").parse().map_or("numeric".into(), |found: DataType| sql_name(&found)),
        },
        "Utf8" | "LargeUtf8" | "Utf8View" | "Date32" => match arguments.strip_prefix('"') {
            Some(text) => format!("'{}'", text.strip_suffix('"').unwrap_or(text)),
            None => arguments.into(),
        },
        word if BARE.contains(&word) => arguments.into(),
        _ => return None,
    })
}

/// A literal's digits with its point; `type_of` is `,precision,scale`.
fn decimal(digits: &str, type_of: &str) -> String {
    let scale = type_of.rsplit(',').next().and_then(|scale| scale.trim().parse::<usize>().ok()).unwrap_or(0);
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let padded = format!("{digits:0>width$}", width = scale + 1);
    match padded.split_at(padded.len() - scale) {
        (whole, "") => format!("{sign}{whole}"),
        (whole, fraction) => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_types_literals_and_tables_as_postgresql_does() {
        for (said, shown) in [
            ("function lower(Int32) does not exist", "function lower(integer) does not exist"),
            ("array_has(List(Decimal128(38, 10)), Decimal128(12, 2))", "array_has(numeric[], numeric(12,2))"),
            ("List(Int64, field: 'element')", "bigint[]"),
            ("Timestamp(µs) and Timestamp(µs, \"UTC\")", "timestamp and timestamptz"),
            ("column clink.public.orders.a of clink.s.t", "column orders.a of s.t"),
            ("count(Int64(1)) > Utf8(\"x\")", "count(*) > 'x'"),
            ("Decimal128(Some(-15),2,1)", "-1.5"),
            ("SET clink.read; clink_catalog.jobs", "SET clink.read; clink_catalog.jobs"),
            ("my_Int32 of Null", "my_Int32 of unknown"),
        ] {
            assert_eq!(reworded(said), shown);
        }
    }
}
