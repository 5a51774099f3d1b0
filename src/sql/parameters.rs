//! Parameters of prepared statements: `$1` and its like are found, get types from what stands
//! around them, and are replaced by values.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::execution::SessionState;
use sqlparser::ast::{self, CastKind, Expr, LimitClause, Value, Visit, VisitMut, Visitor, VisitorMut};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use super::catalog_queries;
use super::planner;
use super::scalar_functions;
use super::statement::{CopySubject, CursorStatement, CursorSubject, Explain, PreparedStatement, StatementKind};
use super::tokens::{position, with_stack};
use super::types::{sql_name, stored};
use crate::types::{Error, Result, SqlState};

/// The most parameters of a statement: the protocol counts them in 16 bits.
const PARAMETERS_MAX: usize = 65_535;

/// The value of a parameter: its text as PostgreSQL reads it, `None` for NULL, and its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The text.
    pub text: Option<String>,
    /// The type that the text is a value of.
    pub data_type: DataType,
}

/// Walks the parts of a statement that may hold parameters.
fn walk<V: Visitor>(kind: &StatementKind, visitor: &mut V) -> ControlFlow<V::Break> {
    match kind {
        StatementKind::Query(query) => query.visit(visitor),
        StatementKind::Insert(insert) => insert.visit(visitor),
        StatementKind::Update(update) => update.visit(visitor),
        StatementKind::Delete(delete) => delete.visit(visitor),
        StatementKind::CreateView(view) => view.query.visit(visitor),
        StatementKind::CreateMaterializedView(view) => view.query.visit(visitor),
        StatementKind::Explain(explain) => match explain.as_ref() {
            Explain::Query(query) | Explain::Analyze(query) => query.visit(visitor),
            Explain::View(view) => view.query.visit(visitor),
            Explain::Job { .. } => ControlFlow::Continue(()),
        },
        StatementKind::Cursor(CursorStatement::Declare { of: CursorSubject::Query(query), .. }) => query.visit(visitor),
        StatementKind::Prepared(PreparedStatement::Execute { arguments, .. }) => arguments.visit(visitor),
        StatementKind::Copy(copy) => match &copy.subject {
            CopySubject::Query(query) => query.visit(visitor),
            CopySubject::Table { .. } | CopySubject::Subscribe(_) => ControlFlow::Continue(()),
        },
        _ => ControlFlow::Continue(()),
    }
}

fn walk_mut<V: VisitorMut>(kind: &mut StatementKind, visitor: &mut V) -> ControlFlow<V::Break> {
    match kind {
        StatementKind::Query(query) => query.visit(visitor),
        StatementKind::Insert(insert) => insert.visit(visitor),
        StatementKind::Update(update) => update.visit(visitor),
        StatementKind::Delete(delete) => delete.visit(visitor),
        StatementKind::Explain(explain) => match explain.as_mut() {
            Explain::Query(query) | Explain::Analyze(query) => query.visit(visitor),
            Explain::View(_) | Explain::Job { .. } => ControlFlow::Continue(()),
        },
        StatementKind::Cursor(CursorStatement::Declare { of: CursorSubject::Query(query), .. }) => query.visit(visitor),
        StatementKind::Copy(copy) => match &mut copy.subject {
            CopySubject::Query(query) => query.visit(visitor),
            CopySubject::Table { .. } | CopySubject::Subscribe(_) => ControlFlow::Continue(()),
        },
        _ => ControlFlow::Continue(()),
    }
}

/// The index of a parameter, from 0; `None` for other expressions.
///
/// # Errors
/// 42601 for other systems' spellings, 42P02 for `$0`, 54000 for one that is too high.
pub fn parameter_index(expression: &Expr) -> Result<Option<usize>> {
    let Expr::Value(ast::ValueWithSpan { value: Value::Placeholder(name), span }) = expression else {
        return Ok(None);
    };
    let at = position(*span);
    let Some(number) = name.strip_prefix('$').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) else {
        return Err(Error::new(SqlState::SyntaxError, format!("syntax error at or near \"{name}\""))
            .hint("Parameters are written $1, $2 and so on.")
            .position_or(at));
    };
    match number.parse::<usize>() {
        Ok(0) => Err(no_parameter(name).position_or(at)),
        Ok(number) if number <= PARAMETERS_MAX => Ok(Some(number - 1)),
        _ => Err(Error::new(
            SqlState::ProgramLimitExceeded,
            format!("a statement may have at most {PARAMETERS_MAX} parameters"),
        )
        .hint("Send the rows in several statements, or with COPY.")
        .position_or(at)),
    }
}

fn no_parameter(name: &str) -> Error {
    Error::new(SqlState::UndefinedParameter, format!("there is no parameter {name}"))
        .hint("Parameters belong to prepared statements: PREPARE, or the extended query protocol of your driver.")
}

struct Places(Vec<Option<usize>>);

impl Visitor for Places {
    type Break = Error;

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        match parameter_index(expression) {
            Err(error) => ControlFlow::Break(error),
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(index)) => {
                if self.0.len() <= index {
                    self.0.resize(index + 1, None);
                }
                if let (Some(place), Expr::Value(value)) = (self.0.get_mut(index), expression) {
                    place.get_or_insert(position(value.span).unwrap_or(1));
                }
                ControlFlow::Continue(())
            }
        }
    }
}

/// Where each parameter stands first, in characters from 1; `None` for numbers that are left out.
///
/// # Errors
/// Those of [`parameter_index`].
pub fn parameter_places(kind: &StatementKind) -> Result<Vec<Option<usize>>> {
    let mut places = Places(Vec::new());
    match with_stack(|| walk(kind, &mut places)) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(places.0),
    }
}

/// Refuses a statement with parameters, where nobody gives them values.
///
/// # Errors
/// 42P02.
pub fn refuse_parameters(kind: &StatementKind, text: &str) -> Result<()> {
    // Most statements have none, and long ones are slow to walk.
    if !text.contains(['$', '?', ':']) {
        return Ok(());
    }
    let places = parameter_places(kind)?;
    match places.iter().enumerate().find_map(|(index, place)| place.map(|place| (index, place))) {
        Some((index, place)) => Err(no_parameter(&format!("${}", index + 1)).position(place)),
        None => Ok(()),
    }
}

/// Types that the statement's text gives: casts, LIMIT, arguments of functions of SQL.
struct Stated<'a> {
    state: &'a SessionState,
    types: &'a mut [Option<DataType>],
}

impl Stated<'_> {
    fn set(&mut self, expression: &Expr, data_type: DataType) {
        if let Ok(Some(index)) = parameter_index(bare(expression))
            && let Some(known) = self.types.get_mut(index)
        {
            known.get_or_insert(data_type);
        }
    }
}

impl Visitor for Stated<'_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        if let Expr::Cast { expr, data_type, .. } = expression {
            if catalog_queries::is_oid_array(data_type) {
                self.set(expr, DataType::List(Arc::new(Field::new_list_field(DataType::UInt32, true))));
            }
            // The catalog's own types are those of its tables.
            let data_type = catalog_queries::stored_type(data_type).unwrap_or_else(|| data_type.clone());
            if let Ok(stored) = stored(&data_type) {
                self.set(expr, stored.data_type);
            }
        }
        if let Expr::Function(ast::Function { name, args: ast::FunctionArguments::List(list), .. }) = expression {
            let taken = scalar_functions::taken_types(self.state, name);
            for (argument, data_type) in list.args.iter().zip(taken) {
                if let ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) = argument {
                    self.set(argument, data_type);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<Error> {
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause {
            for count in limit.iter().chain(offset.iter().map(|offset| &offset.value)) {
                self.set(count, DataType::Int64);
            }
        }
        ControlFlow::Continue(())
    }
}

fn bare(expression: &Expr) -> &Expr {
    match expression {
        Expr::Nested(inner) => bare(inner),
        other => other,
    }
}

/// Fills in the types of parameters that the statement's text and `queries` (what it reads, as far as
/// that can be planned) tell.
///
/// # Errors
/// Those of planning the queries.
pub async fn parameter_types(
    state: &SessionState,
    kind: &StatementKind,
    queries: &[ast::Query],
    types: &mut [Option<DataType>],
) -> Result<()> {
    let _ = with_stack(|| walk(kind, &mut Stated { state, types }));
    for query in queries {
        if types.iter().all(Option::is_some) {
            break;
        }
        let mut typed = query.clone();
        let mut put = PutTypes(types);
        let _ = with_stack(|| VisitMut::visit(&mut typed, &mut put));
        planner::infer_parameters(state, &typed, types).await?;
    }
    Ok(())
}

/// Puts NULLs of their types in the place of parameters whose types are known: nothing is run.
struct PutTypes<'a>(&'a [Option<DataType>]);

impl VisitorMut for PutTypes<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Ok(Some(index)) = parameter_index(expression)
            && let Some(Some(data_type)) = self.0.get(index)
            && let Ok(data_type) = ast_type(data_type)
        {
            *expression = cast_to(Expr::value(Value::Null), data_type);
        }
        ControlFlow::Continue(())
    }
}

/// The statement with NULLs in the place of its parameters, so that it can be described before there
/// are values.
///
/// # Errors
/// 0A000 for a type that has no name.
pub fn with_types(kind: &StatementKind, types: &[DataType]) -> Result<StatementKind> {
    let known: Vec<Option<DataType>> = types.iter().cloned().map(Some).collect();
    for data_type in types {
        ast_type(data_type)?;
    }
    let mut kind = kind.clone();
    let _ = with_stack(|| walk_mut(&mut kind, &mut PutTypes(&known)));
    Ok(kind)
}

fn cast_to(expression: Expr, data_type: ast::DataType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expression), data_type, array: false, format: None }
}

/// How values of a type by its name are stored; `None` when there is no such type.
pub fn type_by_name(name: &str) -> Option<DataType> {
    let parsed = Parser::new(&PostgreSqlDialect {}).try_with_sql(name).and_then(|mut parser| parser.parse_data_type());
    Some(stored(&parsed.ok()?).ok()?.data_type)
}

fn ast_type(data_type: &DataType) -> Result<ast::DataType> {
    let name = sql_name(data_type);
    Parser::new(&PostgreSqlDialect {}).try_with_sql(&name).and_then(|mut parser| parser.parse_data_type()).map_err(
        |_| {
            Error::unsupported(format!("parameters of type {name} are not supported"))
                .hint("Give the value as text and cast it.")
        },
    )
}

/// An expression cast to a type.
///
/// # Errors
/// 0A000 for a type that has no name.
pub fn cast_expression(expression: Expr, data_type: &DataType) -> Result<Expr> {
    Ok(cast_to(expression, ast_type(data_type)?))
}

/// A parameter's value as an expression of its type.
///
/// # Errors
/// 0A000 for a type that has no name.
pub fn bound_literal(parameter: &Parameter) -> Result<Expr> {
    let value = match &parameter.text {
        None => Value::Null,
        Some(text) => Value::SingleQuotedString(text.clone()),
    };
    // A numeric keeps its digits, which the type without scale would not.
    if let (DataType::Decimal128(..), Some(text)) = (&parameter.data_type, &parameter.text) {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = digits.len() <= 38
            && digits.bytes().any(|byte| byte.is_ascii_digit())
            && digits.bytes().filter(|byte| *byte == b'.').count() <= 1
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if plain {
            // With a point it stays a numeric.
            let number = if digits.contains('.') { digits.to_owned() } else { format!("{digits}.") };
            let number = number.strip_suffix('.').map_or(number.clone(), |whole| format!("{whole}.0"));
            let number = Expr::value(Value::Number(number, false));
            return Ok(if digits.len() < text.len() {
                Expr::Nested(Box::new(Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr: Box::new(number) }))
            } else {
                number
            });
        }
    }
    Ok(cast_to(Expr::value(value), ast_type(&parameter.data_type)?))
}

struct Bind<'a> {
    values: &'a [Expr],
    missing: Option<usize>,
}

impl VisitorMut for Bind<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Ok(Some(index)) = parameter_index(expression) {
            match self.values.get(index) {
                Some(value) => *expression = value.clone(),
                None => self.missing = Some(index),
            }
        }
        ControlFlow::Continue(())
    }
}

/// Puts values in the place of parameters.
///
/// # Errors
/// 42P02 when there are too few.
pub fn bind(kind: &mut StatementKind, values: &[Expr]) -> Result<()> {
    let mut bind = Bind { values, missing: None };
    let _ = with_stack(|| walk_mut(kind, &mut bind));
    match bind.missing {
        Some(index) => Err(no_parameter(&format!("${}", index + 1))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parse;

    fn one(text: &str) -> StatementKind {
        parse(text).expect(text).remove(0).kind
    }

    #[test]
    fn parameters_have_places_and_stated_types() {
        let kind = one("SELECT $2::date, $1 FROM t WHERE a = '$3' LIMIT $4");
        assert_eq!(parameter_places(&kind).expect("places"), [Some(18), Some(8), None, Some(49)]);
        let mut types = vec![None; 4];
        let state = datafusion::execution::SessionStateBuilder::new().build();
        let _ = walk(&kind, &mut Stated { state: &state, types: &mut types });
        assert_eq!(types, [None, Some(DataType::Date32), None, Some(DataType::Int64)]);
        let error = refuse_parameters(&kind, "$").expect_err("no values");
        assert_eq!((error.code(), error.position_at()), (SqlState::UndefinedParameter, Some(18)));
        for text in ["SELECT $0", "SELECT $70000"] {
            assert!(parameter_places(&one(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn values_stand_where_parameters_stood() {
        let mut kind = one("INSERT INTO t VALUES ($1, $2, -$3)");
        let values: Vec<Expr> = [
            Parameter { text: Some("it's".into()), data_type: DataType::Utf8 },
            Parameter { text: None, data_type: DataType::Int32 },
            Parameter { text: Some("-1.50".into()), data_type: DataType::Decimal128(38, 10) },
        ]
        .iter()
        .map(|parameter| bound_literal(parameter).expect("a literal"))
        .collect();
        bind(&mut kind, &values).expect("all are there");
        let StatementKind::Insert(insert) = &kind else { panic!("no INSERT") };
        assert_eq!(insert.to_string(), "INSERT INTO t VALUES (CAST('it''s' AS TEXT), CAST(NULL AS INTEGER), -(-1.50))");
        assert!(bind(&mut one("SELECT $1, $2"), &values[..1]).is_err());
    }
}
