//! Where in a query an error has its place, told from what its message quotes.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, GroupByExpr, Ident, JoinConstraint, JoinOperator, ObjectName, OrderByKind, Query, Select,
    SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Spanned, Value, ValueWithSpan, Visit, Visitor, WindowType,
};

use super::errors::between;
use super::names::output_name;
use super::reader::fold;
use super::tokens::position;
use crate::types::{Error, SqlState};

/// Adds the place in the query where the name or the literal stands that the message quotes, when it has none.
pub(crate) fn locate<T: Visit>(error: Error, query: &T) -> Error {
    if error.position_at().is_some() {
        return error;
    }
    let wanted = wanted(&error);
    let found = wanted.into_iter().find_map(|wanted| {
        let mut search = Search { wanted, found: None, operations: 0 };
        let _ = query.visit(&mut search);
        search.found.filter(|_| search.operations < 2)
    });
    error.position_or(found)
}

/// What is looked for.
enum Wanted {
    /// A name of anything.
    Name(String),
    /// A text or a number.
    Literal(String),
    /// A number in ORDER BY or GROUP BY.
    Ordinal(String),
    /// The second column of this name in a SELECT.
    Again(String),
    /// The condition of WHERE.
    Condition,
    /// The expression of a kind whose values have to be of one type.
    Together(String),
    /// `*`.
    Wildcard,
    /// `LIMIT` or `OFFSET`.
    Count { limit: bool },
    /// The first key of ORDER BY.
    OrderKey,
    /// The only operation with this operator.
    Operator(String),
    /// A subquery of several columns.
    Columns,
    /// The first condition of a CASE.
    When,
}

/// What an error's message quotes, the likeliest first.
fn wanted(error: &Error) -> Vec<Wanted> {
    let message = error.message();
    if let Some(number) =
        between(message, "ORDER BY position ", " is not").or_else(|| between(message, "GROUP BY position ", " is not"))
    {
        return vec![Wanted::Ordinal(number.to_owned())];
    }
    if message.starts_with("argument of WHERE") {
        return vec![Wanted::Condition];
    }
    if message.starts_with("argument of CASE/WHEN") {
        return vec![Wanted::When];
    }
    if message == "subquery has too many columns" {
        return vec![Wanted::Columns];
    }
    if let Some(context) = message.strip_suffix(" cannot be matched").and_then(|text| text.split(" types ").next()) {
        return vec![Wanted::Together(context.to_lowercase())];
    }
    match error.code() {
        SqlState::InvalidLimit => return vec![Wanted::Count { limit: true }],
        SqlState::InvalidOffset => return vec![Wanted::Count { limit: false }],
        SqlState::InvalidColumnReference if message.contains("ORDER BY expressions") => return vec![Wanted::OrderKey],
        _ => {}
    }
    if let Some(operands) = message.strip_prefix("operator does not exist: ") {
        let symbol = operands.split(' ').find(|word| !word.starts_with(|c: char| c.is_alphanumeric()));
        return symbol.map(|symbol| Wanted::Operator(symbol.to_owned())).into_iter().collect();
    }
    let mut wanted = Vec::new();
    let literal = matches!(
        error.code(),
        SqlState::InvalidText | SqlState::NumericOutOfRange | SqlState::DatetimeOverflow | SqlState::InvalidRegex
    );
    if literal {
        // A literal may have quotes in it.
        let quoted = message.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map(|(text, _)| text);
        wanted.extend(quoted.map(|text| Wanted::Literal(text.to_owned())));
        return wanted;
    }
    let quoted = between(message, "\"", "\"")
        .or_else(|| between(message, "column ", " does not exist"))
        .or_else(|| between(message, "function ", "("))
        .or_else(|| between(message, "aggregate ", " in a materialized view"));
    if let Some(name) = quoted.map(|name| name.rsplit('.').next().unwrap_or(name)) {
        if error.code() == SqlState::DuplicateColumn {
            wanted.push(Wanted::Again(name.to_owned()));
        }
        wanted.push(Wanted::Name(name.to_owned()));
    }
    if error.code() == SqlState::GroupingError {
        wanted.push(Wanted::Wildcard);
    }
    wanted
}

struct Search {
    wanted: Wanted,
    found: Option<usize>,
    /// Operations with the wanted operator.
    operations: usize,
}

impl Search {
    fn found(&mut self, at: Option<usize>) -> ControlFlow<()> {
        self.found = at;
        if at.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn look(&mut self, identifiers: &[&Ident], at: Option<usize>) -> ControlFlow<()> {
        match &self.wanted {
            Wanted::Name(name) if identifiers.last().is_some_and(|identifier| fold(identifier) == *name) => {
                self.found(at)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn ordinal(&mut self, keys: &mut dyn Iterator<Item = &Expr>) -> ControlFlow<()> {
        let Wanted::Ordinal(number) = &self.wanted else { return ControlFlow::Continue(()) };
        for key in keys {
            if let Expr::Value(ValueWithSpan { value: Value::Number(text, _), span }) = key
                && text == number
            {
                return self.found(position(*span));
            }
        }
        ControlFlow::Continue(())
    }

    fn together(&mut self, expression: &Expr) -> ControlFlow<()> {
        let Wanted::Together(context) = &self.wanted else { return ControlFlow::Continue(()) };
        let kind = match expression {
            Expr::Case { .. } => "case".to_owned(),
            Expr::Array(_) => "array".to_owned(),
            Expr::Function(function) => function.name.to_string().to_lowercase(),
            _ => return ControlFlow::Continue(()),
        };
        if kind != *context {
            return ControlFlow::Continue(());
        }
        self.found(position(expression.span()))
    }

    fn item(&mut self, item: &SelectItem, names: &mut Vec<String>) -> ControlFlow<()> {
        match (item, &self.wanted) {
            (SelectItem::Wildcard(options), Wanted::Wildcard) => {
                let at = position(options.wildcard_token.0.span);
                return self.found(at);
            }
            (SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _), Wanted::Name(_)) => {
                let parts: Vec<&Ident> = name.0.iter().filter_map(|part| part.as_ident()).collect();
                return self.look(&parts, position(name.span()));
            }
            (SelectItem::UnnamedExpr(expression), Wanted::Again(wanted)) => {
                let name = output_name(expression);
                if name == *wanted && names.contains(&name) {
                    return self.found(position(expression.span()));
                }
                names.push(name);
            }
            (SelectItem::ExprWithAlias { alias, expr }, Wanted::Again(wanted)) => {
                let name = fold(alias);
                if name == *wanted && names.contains(&name) {
                    let at = position(alias.span).or_else(|| position(expr.span()));
                    return self.found(at);
                }
                names.push(name);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Search {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let SetExpr::SetOperation { right, .. } = query.body.as_ref()
            && matches!(&self.wanted, Wanted::Together(context) if context == "union")
        {
            return self.found(position(right.span()));
        }
        if let Some(OrderByKind::Expressions(keys)) = query.order_by.as_ref().map(|order| &order.kind) {
            self.ordinal(&mut keys.iter().map(|key| &key.expr))?;
            if matches!(self.wanted, Wanted::OrderKey)
                && let Some(key) = keys.first()
            {
                return self.found(position(key.expr.span()));
            }
        }
        if let Wanted::Count { limit } = &self.wanted
            && let Some(sqlparser::ast::LimitClause::LimitOffset { limit: most, offset, .. }) = &query.limit_clause
        {
            let count = if *limit { most.as_ref() } else { offset.as_ref().map(|offset| &offset.value) };
            let at = count.and_then(|count| position(count.span()));
            return self.found(at);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        if let GroupByExpr::Expressions(keys, _) = &select.group_by {
            self.ordinal(&mut keys.iter())?;
        }
        if matches!(self.wanted, Wanted::Condition)
            && let Some(condition) = &select.selection
        {
            return self.found(position(condition.span()));
        }
        let mut names = Vec::new();
        for item in &select.projection {
            self.item(item, &mut names)?;
        }
        for join in select.from.iter().flat_map(|from| &from.joins) {
            if let JoinOperator::Join(JoinConstraint::Using(columns))
            | JoinOperator::Inner(JoinConstraint::Using(columns))
            | JoinOperator::Left(JoinConstraint::Using(columns))
            | JoinOperator::LeftOuter(JoinConstraint::Using(columns))
            | JoinOperator::Right(JoinConstraint::Using(columns))
            | JoinOperator::RightOuter(JoinConstraint::Using(columns))
            | JoinOperator::FullOuter(JoinConstraint::Using(columns)) = &join.join_operator
            {
                for column in columns {
                    let parts: Vec<&Ident> = column.0.iter().filter_map(|part| part.as_ident()).collect();
                    self.look(&parts, position(column.span()))?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let parts: Vec<&Ident> = relation.0.iter().filter_map(|part| part.as_ident()).collect();
        self.look(&parts, position(relation.span()))
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        self.together(expression)?;
        match expression {
            Expr::Identifier(identifier) => self.look(&[identifier], position(identifier.span)),
            Expr::CompoundIdentifier(parts) => {
                let at = parts.first().and_then(|part| position(part.span));
                self.look(&parts.iter().collect::<Vec<_>>(), at)
            }
            Expr::Function(function) => self.function(function),
            Expr::Like { expr, .. } if matches!(&self.wanted, Wanted::Operator(symbol) if symbol == "~~") => {
                self.operations += 1;
                self.found = position(expr.span());
                ControlFlow::Continue(())
            }
            Expr::Case { conditions, .. } if matches!(self.wanted, Wanted::When) => {
                let at = conditions.first().and_then(|when| position(when.condition.span()));
                self.found(at)
            }
            Expr::Subquery(query) if matches!(self.wanted, Wanted::Columns) => match query.body.as_ref() {
                SetExpr::Select(select) if select.projection.len() > 1 => self.found(position(select.span())),
                _ => ControlFlow::Continue(()),
            },
            Expr::BinaryOp { left, op, .. } => {
                if matches!(&self.wanted, Wanted::Operator(symbol) if op.to_string() == *symbol) {
                    self.operations += 1;
                    self.found = position(left.span());
                }
                ControlFlow::Continue(())
            }
            Expr::Value(ValueWithSpan { value, span }) => match (value, &self.wanted) {
                (
                    Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) | Value::Number(text, _),
                    Wanted::Literal(wanted),
                ) if text.trim() == wanted.trim() => self.found(position(*span)),
                _ => ControlFlow::Continue(()),
            },
            Expr::TypedString(typed) => match (&typed.value.value, &self.wanted) {
                (Value::SingleQuotedString(text), Wanted::Literal(wanted)) if text.trim() == wanted.trim() => {
                    self.found(position(typed.value.span))
                }
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Search {
    fn function(&mut self, function: &Function) -> ControlFlow<()> {
        if let Some(WindowType::NamedWindow(window)) = &function.over {
            self.look(&[window], position(window.span))?;
        }
        let parts: Vec<&Ident> = function.name.0.iter().filter_map(|part| part.as_ident()).collect();
        self.look(&parts, position(function.name.span()))
    }
}
