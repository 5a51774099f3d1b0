//! Queries that a DML statement is made of.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use sqlparser::ast::{Expr, Ident, Query, Select, SelectItem, SetExpr, Spanned, Statement, TableWithJoins};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Span;

use crate::catalog::Catalog;
use crate::engine::coordinator::ReadBound;
use crate::engine::database::{Engine, RowTables};
use crate::engine::interrupt::Interrupt;
use crate::engine::pending::Pending;
use crate::engine::read::{self, Collected};
use crate::engine::relations::Relations;
use crate::types::{Error, RelationId, Result, Time, TimeZone};

/// What a statement's queries share.
pub(crate) struct Evaluator {
    pub(crate) engine: Arc<Engine>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) interrupt: Interrupt,
    /// Reads are at this time or later.
    pub(crate) at_least: Time,
    /// What the transaction block changed before.
    pub(crate) pending: Arc<Pending>,
    /// The session's.
    pub(crate) zone: TimeZone,
    /// The session's.
    pub(crate) user: Arc<str>,
}

impl Evaluator {
    /// Runs a query in which `rows` can be named besides the catalog's relations.
    pub(crate) async fn query(&self, query: Query, rows: RowTables) -> Result<Collected> {
        let relations = Relations::new(&self.engine, Arc::clone(&self.catalog))
            .with_rows(rows)
            .with_pending(Arc::clone(&self.pending))
            .with_zone(self.zone.clone())
            .with_user(&self.user);
        let collected = read::collect(Arc::clone(&self.engine), relations, Box::new(query), self.bound());
        self.interrupt.run(collected).await
    }

    /// Rows that were looked up by their keys, as they are with the block's own changes.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub(crate) fn with_pending(
        &self,
        table: RelationId,
        found: RecordBatch,
        wanted: &RecordBatch,
        key: &[usize],
    ) -> Result<RecordBatch> {
        match self.pending.of(table) {
            None => Ok(found),
            Some(net) => net.after_lookup(&found, wanted, key),
        }
    }

    /// The time that reads take.
    pub(crate) fn bound(&self) -> ReadBound {
        ReadBound::Latest { at_least: self.at_least }
    }
}

/// Rows as a table that a query can name.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn rows_table(rows: RecordBatch) -> Result<Arc<dyn TableProvider>> {
    let table = MemTable::try_new(rows.schema(), vec![vec![rows]]).map_err(crate::engine::error_of)?;
    Ok(Arc::new(table))
}

/// A query made of parts: `from` is the text of a FROM clause.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn select(items: Vec<SelectItem>, from: &str, selection: Option<Expr>) -> Result<Query> {
    let text = format!("SELECT 1 FROM {from}");
    let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, &text)
        .map_err(|error| Error::internal(format!("cannot parse {text}: {error}")))?;
    let Some(Statement::Query(mut query)) = statements.pop() else {
        return Err(Error::internal(format!("{text} is no query")));
    };
    let body = select_of(&mut query)?;
    body.projection = items;
    body.selection = selection;
    // The places in the made-up text would be taken for places in the user's.
    body.select_token.0 = sqlparser::tokenizer::TokenWithSpan::new_eof();
    Ok(*query)
}

/// The same over a table as the user wrote it.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn select_from(items: Vec<SelectItem>, from: TableWithJoins, selection: Option<Expr>) -> Result<Query> {
    let mut query = select(items, "t", selection)?;
    select_of(&mut query)?.from = vec![from];
    Ok(query)
}

fn select_of(query: &mut Query) -> Result<&mut Select> {
    match query.body.as_mut() {
        SetExpr::Select(select) => Ok(select),
        _ => Err(Error::internal("a query without SELECT")),
    }
}

/// A name as it stands.
pub(crate) fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// `"name"` for use in text.
pub(crate) fn quoted_text(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The column of this name.
pub(crate) fn column_item(name: &str) -> SelectItem {
    SelectItem::UnnamedExpr(Expr::Identifier(quoted(name)))
}

/// An expression under a name.
pub(crate) fn named_item(expr: Expr, name: &str) -> SelectItem {
    SelectItem::ExprWithAlias { expr, alias: quoted(name) }
}

/// Where something stands in the statement: characters from 1.
pub(crate) fn position(of: &impl Spanned) -> Option<usize> {
    place(of.span())
}

/// Where a span begins in the statement: characters from 1.
pub(crate) fn place(span: Span) -> Option<usize> {
    let start = span.start;
    // The parser's spans have one line for the whole statement; line 0 is no place.
    if start.line == 0 { None } else { usize::try_from(start.column).ok() }
}
