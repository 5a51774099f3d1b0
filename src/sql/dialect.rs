//! PostgreSQL's lexing and grammar, with a few answers of our own.
//!
//! sqlparser's dialect reads each function argument twice (once as the name of a named argument),
//! which doubles the work with every level of nesting: forty nested calls would never end. And it takes all that stands
//! behind `IS DISTINCT FROM`, an `AND` too, for the other operand.

use std::any::TypeId;

use sqlparser::ast::Expr;
use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};

/// The grammar that statements are read with.
#[derive(Debug)]
pub(crate) struct ClinkDialect;

const POSTGRES: PostgreSqlDialect = PostgreSqlDialect {};

impl Dialect for ClinkDialect {
    // The parser asks for the dialect's type in many places; we are PostgreSQL there.
    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        POSTGRES.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        POSTGRES.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        POSTGRES.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        POSTGRES.is_identifier_part(ch)
    }

    fn supports_unicode_string_literal(&self) -> bool {
        POSTGRES.supports_unicode_string_literal()
    }

    fn is_reserved_for_identifier(&self, kw: Keyword) -> bool {
        POSTGRES.is_reserved_for_identifier(kw)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        POSTGRES.is_custom_operator_part(ch)
    }

    fn get_next_precedence(&self, parser: &Parser) -> Option<Result<u8, ParserError>> {
        POSTGRES.get_next_precedence(parser)
    }

    fn parse_infix(&self, parser: &mut Parser, expr: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        use Keyword::{DISTINCT, FROM, IS, NOT};
        let differ = parser.parse_keywords(&[IS, DISTINCT, FROM]);
        if !differ && !parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]) {
            return POSTGRES.parse_infix(parser, expr, precedence);
        }
        let left = Box::new(expr.clone());
        let right = match parser.parse_subexpr(self.prec_value(Precedence::Is)) {
            Ok(right) => Box::new(right),
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(if differ { Expr::IsDistinctFrom(left, right) } else { Expr::IsNotDistinctFrom(left, right) }))
    }

    fn supports_filter_during_aggregation(&self) -> bool {
        POSTGRES.supports_filter_during_aggregation()
    }

    fn supports_group_by_expr(&self) -> bool {
        POSTGRES.supports_group_by_expr()
    }

    fn prec_value(&self, prec: Precedence) -> u8 {
        POSTGRES.prec_value(prec)
    }

    fn allow_extract_custom(&self) -> bool {
        POSTGRES.allow_extract_custom()
    }

    fn allow_extract_single_quotes(&self) -> bool {
        POSTGRES.allow_extract_single_quotes()
    }

    fn supports_create_index_with_clause(&self) -> bool {
        POSTGRES.supports_create_index_with_clause()
    }

    fn supports_explain_with_utility_options(&self) -> bool {
        POSTGRES.supports_explain_with_utility_options()
    }

    fn supports_listen_notify(&self) -> bool {
        POSTGRES.supports_listen_notify()
    }

    fn supports_factorial_operator(&self) -> bool {
        POSTGRES.supports_factorial_operator()
    }

    fn supports_bitwise_shift_operators(&self) -> bool {
        POSTGRES.supports_bitwise_shift_operators()
    }

    fn supports_comment_on(&self) -> bool {
        POSTGRES.supports_comment_on()
    }

    fn supports_load_extension(&self) -> bool {
        POSTGRES.supports_load_extension()
    }

    fn supports_named_fn_args_with_colon_operator(&self) -> bool {
        POSTGRES.supports_named_fn_args_with_colon_operator()
    }

    fn supports_empty_projections(&self) -> bool {
        POSTGRES.supports_empty_projections()
    }

    fn supports_nested_comments(&self) -> bool {
        POSTGRES.supports_nested_comments()
    }

    fn supports_string_escape_constant(&self) -> bool {
        POSTGRES.supports_string_escape_constant()
    }

    fn supports_numeric_literal_underscores(&self) -> bool {
        POSTGRES.supports_numeric_literal_underscores()
    }

    fn supports_array_typedef_with_brackets(&self) -> bool {
        POSTGRES.supports_array_typedef_with_brackets()
    }

    fn supports_geometric_types(&self) -> bool {
        POSTGRES.supports_geometric_types()
    }

    fn supports_set_names(&self) -> bool {
        POSTGRES.supports_set_names()
    }

    fn supports_alter_column_type_using(&self) -> bool {
        POSTGRES.supports_alter_column_type_using()
    }

    fn supports_notnull_operator(&self) -> bool {
        POSTGRES.supports_notnull_operator()
    }

    fn supports_interval_options(&self) -> bool {
        POSTGRES.supports_interval_options()
    }

    fn supports_insert_table_alias(&self) -> bool {
        POSTGRES.supports_insert_table_alias()
    }

    fn supports_create_table_like_parenthesized(&self) -> bool {
        POSTGRES.supports_create_table_like_parenthesized()
    }

    fn supports_select_wildcard_with_alias(&self) -> bool {
        POSTGRES.supports_select_wildcard_with_alias()
    }

    fn supports_comma_separated_trim(&self) -> bool {
        POSTGRES.supports_comma_separated_trim()
    }

    fn supports_xml_expressions(&self) -> bool {
        POSTGRES.supports_xml_expressions()
    }

    // PATTERN is written as the parser takes it before.
    fn supports_match_recognize(&self) -> bool {
        true
    }

    fn supports_comment_optimizer_hint(&self) -> bool {
        POSTGRES.supports_comment_optimizer_hint()
    }
}
