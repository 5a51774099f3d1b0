//! Statements that are prepared once and run with values.
//!
//! A parameter's type is the one that the client declares, else the one that the text gives
//! (`$1::date`), else that of the column it goes to or is compared with, else text. Values take the
//! place of the parameters in the parsed statement, which is planned when it runs, so it follows
//! every change of the catalog.

use arrow::datatypes::{DataType, SchemaRef};
use sqlparser::ast::{self, Expr, SelectItem, SetExpr, Value};

use crate::sql::{self, Parameter, Statement, StatementKind};
use crate::types::{Error, Result, SqlState};

use super::database::Engine;
use super::dml;
use super::session::Session;

/// A prepared statement.
#[derive(Clone, Debug)]
pub struct Prepared {
    statement: Statement,
    types: Vec<DataType>,
    schema: Option<SchemaRef>,
}

impl Prepared {
    /// The types of its parameters.
    pub fn parameter_types(&self) -> &[DataType] {
        &self.types
    }

    /// The columns of its rows; `None` when it gives none.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// The statement.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// The statement with values for its parameters.
    ///
    /// # Errors
    /// 08P01 when there are too few or too many.
    pub(crate) fn bind(&self, engine: &Engine, parameters: &[Parameter]) -> Result<StatementKind> {
        if parameters.len() != self.types.len() {
            return Err(Error::new(
                SqlState::ProtocolViolation,
                format!(
                    "bind message supplies {} parameters, but the prepared statement requires {}",
                    parameters.len(),
                    self.types.len()
                ),
            ));
        }
        let mut kind = self.statement.kind.clone();
        if parameters.is_empty() {
            return Ok(kind);
        }
        if let StatementKind::Insert(insert) = &mut kind {
            bind_cells(engine, insert, parameters)?;
        }
        let values = parameters.iter().map(sql::bound_literal).collect::<Result<Vec<_>>>()?;
        sql::bind(&mut kind, &values)?;
        Ok(kind)
    }

    /// The same with expressions, as `EXECUTE` gives them.
    ///
    /// # Errors
    /// 42601 when there are too few or too many.
    pub(crate) fn bind_expressions(&self, name: &str, arguments: &[Expr]) -> Result<StatementKind> {
        if arguments.len() != self.types.len() {
            return Err(Error::new(
                SqlState::SyntaxError,
                format!("wrong number of parameters for prepared statement \"{name}\""),
            )
            .detail(format!("Expected {} parameters but got {}.", self.types.len(), arguments.len()))
            .hint(format!("Write EXECUTE {name}(…) with {} values.", self.types.len())));
        }
        let mut kind = self.statement.kind.clone();
        let values = arguments
            .iter()
            .zip(&self.types)
            .map(|(argument, data_type)| sql::cast_expression(argument.clone(), data_type))
            .collect::<Result<Vec<_>>>()?;
        sql::bind(&mut kind, &values)?;
        Ok(kind)
    }
}

/// Prepares a statement. `declared` are the types that the client gave, in order.
///
/// # Errors
/// Those of planning it; 42P18 for a parameter number that is left out.
pub(crate) async fn prepare(
    session: &Session,
    statement: Statement,
    declared: &[Option<DataType>],
) -> Result<Prepared> {
    let places = sql::parameter_places(&statement.kind)?;
    if places.is_empty() {
        let schema = session.describe_kind(&statement.kind).await?;
        // Types of parameters that the statement does not have are kept, so that Bind may give them.
        let types = declared.iter().map(|declared| declared.clone().unwrap_or(DataType::Utf8)).collect();
        return Ok(Prepared { statement, types, schema });
    }
    let bindable = matches!(
        statement.kind,
        StatementKind::Query(_)
            | StatementKind::Insert(_)
            | StatementKind::Update(_)
            | StatementKind::Delete(_)
            | StatementKind::Explain(_)
            | StatementKind::Cursor(_)
            | StatementKind::Copy(_)
            | StatementKind::Subscribe(_)
    );
    if !bindable {
        return sql::refuse_parameters(&statement.kind, "$")
            .and(Err(Error::internal("a statement lost its parameters")));
    }
    let mut types: Vec<Option<DataType>> = declared.to_vec();
    types.resize(places.len().max(declared.len()), None);
    let relations = session.relations();
    let state = relations.state();
    let queries = known_types(session, &statement.kind, &mut types)?;
    sql::parameter_types(&state, &statement.kind, &queries, &mut types).await?;
    for (index, (place, known)) in places.iter().zip(&types).enumerate() {
        if place.is_none() && known.is_none() {
            return Err(Error::new(
                SqlState::IndeterminateDatatype,
                format!("could not determine data type of parameter ${}", index + 1),
            )
            .hint("Number parameters without gaps, or declare their types."));
        }
    }
    let types: Vec<DataType> = types.into_iter().map(|known| known.unwrap_or(DataType::Utf8)).collect();
    let described = sql::with_types(&statement.kind, &types)?;
    let schema = session.describe_kind(&described).await?;
    Ok(Prepared { statement, types, schema })
}

/// Gives parameters the types of the columns that they go to; and the queries in which the others
/// may be found.
fn known_types(session: &Session, kind: &StatementKind, types: &mut [Option<DataType>]) -> Result<Vec<ast::Query>> {
    let catalog = session.engine().catalog();
    let mut set = |expression: &Expr, data_type: &DataType| -> Result<()> {
        if let Some(index) = sql::parameter_index(expression)?
            && let Some(known) = types.get_mut(index)
        {
            known.get_or_insert_with(|| data_type.clone());
        }
        Ok(())
    };
    Ok(match kind {
        StatementKind::Query(query) => vec![query.as_ref().clone()],
        StatementKind::Cursor(sql::CursorStatement::Declare { of: sql::CursorSubject::Query(query), .. }) => {
            vec![query.as_ref().clone()]
        }
        StatementKind::Copy(copy) => match &copy.subject {
            sql::CopySubject::Query(query) => vec![query.as_ref().clone()],
            sql::CopySubject::Table { .. } | sql::CopySubject::Subscribe(_) => Vec::new(),
        },
        StatementKind::Explain(explain) => match explain.as_ref() {
            sql::Explain::Query(query) | sql::Explain::Analyze(query) => vec![query.as_ref().clone()],
            sql::Explain::View(_) | sql::Explain::Job { .. } => Vec::new(),
        },
        StatementKind::Insert(insert) => {
            let target = dml::insert::target(session.engine(), &catalog, insert)?;
            let given = dml::insert::named_columns(&target, insert)?;
            let given: Vec<&DataType> =
                given.iter().filter_map(|index| target.table.columns.get(*index)).map(|c| &c.data_type).collect();
            let mut queries = Vec::new();
            if let Some(source) = &insert.source {
                match source.body.as_ref() {
                    SetExpr::Values(values) => {
                        for row in &values.rows {
                            for (cell, data_type) in row.content.iter().zip(&given) {
                                set(cell, data_type)?;
                            }
                        }
                    }
                    SetExpr::Select(select) => {
                        for (item, data_type) in select.projection.iter().zip(&given) {
                            match item {
                                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                                    set(expr, data_type)?;
                                }
                                _ => break,
                            }
                        }
                    }
                    _ => {}
                }
                queries.push(source.as_ref().clone());
            }
            if let Some(ast::OnInsert::OnConflict(ast::OnConflict {
                action: ast::OnConflictAction::DoUpdate(update),
                ..
            })) = &insert.on
            {
                for (index, value) in dml::change::assigned(&target, &update.assignments)? {
                    if let Some(column) = target.table.columns.get(index) {
                        set(&value, &column.data_type)?;
                    }
                }
            }
            queries
        }
        StatementKind::Update(update) => {
            let ast::Statement::Update(update) = update.as_ref() else { return Ok(Vec::new()) };
            let (target, _) = dml::statement::from_clause(session.engine(), &catalog, &update.table, "UPDATE")?;
            let assigned = dml::change::assigned(&target, &update.assignments)?;
            for (index, value) in &assigned {
                if let Some(column) = target.table.columns.get(*index) {
                    set(value, &column.data_type)?;
                }
            }
            let items = assigned.into_iter().map(|(_, value)| SelectItem::UnnamedExpr(value)).collect();
            vec![dml::evaluate::select_from(items, update.table.clone(), update.selection.clone())?]
        }
        StatementKind::Delete(delete) => {
            let from = dml::change::deleted_from(delete)?;
            let items = vec![SelectItem::UnnamedExpr(Expr::Value(Value::Null.into()))];
            vec![dml::evaluate::select_from(items, from.clone(), delete.selection.clone())?]
        }
        _ => Vec::new(),
    })
}

/// Puts values into the cells of VALUES as literals without a type where that means the same, so
/// that the rows need no planning.
fn bind_cells(engine: &Engine, insert: &mut ast::Insert, parameters: &[Parameter]) -> Result<()> {
    let target = dml::insert::target(engine, &engine.catalog(), insert)?;
    let given = dml::insert::named_columns(&target, insert)?;
    let Some(source) = &mut insert.source else { return Ok(()) };
    let SetExpr::Values(values) = source.body.as_mut() else { return Ok(()) };
    for row in &mut values.rows {
        for (cell, column) in row.content.iter_mut().zip(&given) {
            let (Some(index), Some(column)) = (sql::parameter_index(cell)?, target.table.columns.get(*column)) else {
                continue;
            };
            let Some(parameter) = parameters.get(index) else { continue };
            if let Some(text) = &parameter.text {
                if reads_alike(&parameter.data_type, &column.data_type) {
                    *cell = Expr::Value(Value::SingleQuotedString(text.clone()).into());
                }
            } else if parameter.data_type == column.data_type {
                *cell = Expr::Value(Value::Null.into());
            }
        }
    }
    Ok(())
}

/// True when a text of the first type is read as the same value of the second.
fn reads_alike(from: &DataType, to: &DataType) -> bool {
    from == to
        || from.is_integer() && (to.is_integer() || to.is_decimal() || to.is_floating())
        || from.is_decimal() && to.is_decimal()
}
