//! Query parameters: each known one once, unknown ones refused.

use super::error::ApiError;
use crate::engine::{ChangesRequest, GivenKey, ScanRequest};
use crate::types::Time;

/// The parameters of a request, decoded, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Decodes `a=b&c=d`.
    pub(super) fn parse(query: Option<&str>) -> Result<Parameters, ApiError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if pairs.iter().any(|(before, _)| *before == name) {
                return Err(ApiError::malformed(format!("query parameter \"{name}\" is given twice")));
            }
            pairs.push((name, value));
        }
        Ok(Parameters(pairs))
    }

    /// True when there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let index = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(index).1)
    }

    /// A parameter that has to be there.
    pub(super) fn required(&mut self, name: &str) -> Result<String, ApiError> {
        self.take(name).ok_or_else(|| ApiError::malformed(format!("query parameter \"{name}\" is missing")))
    }

    /// A whole number, if it is given.
    pub(super) fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        number(self, name)
    }

    /// True or false, if it is given.
    pub(super) fn switch(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        flag(self, name)
    }

    /// Refuses what was not taken.
    pub(super) fn finish(&self, known: &str) -> Result<(), ApiError> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(ApiError::malformed(format!("unknown query parameter \"{name}\""))
                .hint(format!("Known parameters: {known}."))),
        }
    }

    /// The parameters of a scan.
    pub(super) fn scan(mut self) -> Result<ScanRequest, ApiError> {
        let request = ScanRequest {
            columns: self.columns()?,
            order: self.order()?,
            filter: self.filter()?,
            key: None,
            worker: None,
            limit: number(&mut self, "limit")?,
            cursor: self.take("cursor"),
            as_of: number(&mut self, "as_of")?.map(Time::from_millis),
            cursor_first: false,
        };
        self.finish("columns, filter, key.<column>, order, limit, cursor, as_of")?;
        if request.order.is_some() && request.cursor.is_some() {
            return Err(ApiError::malformed("\"order\" and \"cursor\" cannot be mixed")
                .hint("A cursor goes on in the view's own order. Ask for what is behind the last row with a filter."));
        }
        Ok(request)
    }

    /// The predicate of a scan: `filter`, and an equality for each `key.<column>`.
    fn filter(&mut self) -> Result<Option<String>, ApiError> {
        let mut parts: Vec<String> = self.take("filter").into_iter().collect();
        let keys = self.keys()?;
        if let Some(filter) = parts.first_mut().filter(|_| !keys.is_empty()) {
            // A comment at its end goes no further.
            *filter = format!("({filter}\n)");
        }
        for (column, value) in keys {
            let Some(column) = column else {
                return Err(ApiError::malformed("\"key\" asks for one row").hint("Name the column: key.<column>=…."));
            };
            let value = value.unwrap_or_default().replace('\'', "''");
            parts.push(format!("\"{}\" = '{value}'", column.replace('"', "\"\"")));
        }
        Ok((!parts.is_empty()).then(|| parts.join(" AND ")))
    }

    /// `key`, or `key.<column>` for each column.
    fn keys(&mut self) -> Result<Vec<GivenKey>, ApiError> {
        let mut key = Vec::new();
        self.0.retain_mut(|(name, value)| {
            let column = match name.strip_prefix("key.") {
                Some(column) => Some(column.to_owned()),
                None if name == "key" => None,
                None => return true,
            };
            key.push((column, Some(std::mem::take(value))));
            false
        });
        if key.len() > 1 && key.iter().any(|(column, _)| column.is_none()) {
            return Err(ApiError::malformed("\"key\" and \"key.<column>\" cannot be mixed")
                .hint("Name each column of the key: key.a=1&key.b=2."));
        }
        Ok(key)
    }

    /// The parameters of a read of an operator's state: its part, and the rest.
    pub(super) fn operator(mut self) -> Result<(Option<String>, ScanRequest), ApiError> {
        let part = self.take("part");
        let key = Some(self.keys()?).filter(|key| !key.is_empty());
        let (columns, filter, order) = (self.columns()?, self.take("filter"), self.order()?);
        let limit = number(&mut self, "limit")?;
        self.finish("key, key.<column>, columns, filter, order, limit, part")?;
        Ok((part, ScanRequest { key, columns, filter, order, limit, ..ScanRequest::default() }))
    }

    fn columns(&mut self) -> Result<Option<Vec<String>>, ApiError> {
        let Some(list) = self.take("columns") else { return Ok(None) };
        let names: Vec<String> = list.split(',').map(str::to_owned).collect();
        if names.iter().any(String::is_empty) {
            return Err(ApiError::malformed("query parameter \"columns\" has an empty name")
                .hint("List column names with commas between them: columns=a,b."));
        }
        Ok(Some(names))
    }

    /// Columns, each with true when the greatest value comes first.
    fn order(&mut self) -> Result<Option<Vec<(String, bool)>>, ApiError> {
        let Some(list) = self.take("order") else { return Ok(None) };
        let column = |item: &str| match item.trim().rsplit_once(' ') {
            Some((name, direction)) if direction.eq_ignore_ascii_case("desc") => Some((name.trim().to_owned(), true)),
            Some((name, direction)) if direction.eq_ignore_ascii_case("asc") => Some((name.trim().to_owned(), false)),
            None if !item.trim().is_empty() => Some((item.trim().to_owned(), false)),
            _ => None,
        };
        let columns: Option<Vec<_>> = list.split(',').map(column).collect();
        columns.map(Some).ok_or_else(|| {
            ApiError::malformed(format!("invalid value for query parameter \"order\": \"{list}\""))
                .hint("List column names, each with desc behind it or not: order=total desc,name.")
        })
    }

    /// The parameters of a subscription.
    pub(super) fn changes(mut self) -> Result<ChangesRequest, ApiError> {
        let request = ChangesRequest {
            snapshot: flag(&mut self, "snapshot")?,
            progress: flag(&mut self, "progress")?.unwrap_or(true),
            as_of: self.take("as_of"),
            up_to: self.take("up_to"),
        };
        self.finish("snapshot, progress, as_of, up_to")?;
        Ok(request)
    }

    /// The parameters of a key read: `key`, or `key.<column>` for each column.
    pub(super) fn key(mut self) -> Result<ScanRequest, ApiError> {
        let as_of = number(&mut self, "as_of")?.map(Time::from_millis);
        let key = self.keys()?;
        let (columns, filter) = (self.columns()?, self.take("filter"));
        self.finish("key, key.<column>, columns, filter, as_of")?;
        if key.is_empty() {
            return Err(ApiError::malformed("query parameter \"key\" is missing")
                .hint("Add key=…, or key.<column>=… for each column of the key."));
        }
        Ok(ScanRequest { key: Some(key), columns, filter, as_of, ..ScanRequest::default() })
    }
}

fn number<T: std::str::FromStr>(parameters: &mut Parameters, name: &str) -> Result<Option<T>, ApiError> {
    let Some(text) = parameters.take(name) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(ApiError::malformed(format!("invalid value for query parameter \"{name}\": \"{text}\""))
            .hint("Use a whole number.")),
    }
}

fn flag(parameters: &mut Parameters, name: &str) -> Result<Option<bool>, ApiError> {
    match parameters.take(name).as_deref() {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(text) => Err(ApiError::malformed(format!("invalid value for query parameter \"{name}\": \"{text}\""))
            .hint("Use true or false.")),
    }
}

/// Percent-decodes a part of a query; `+` is a space.
fn decode(text: &str) -> Result<String, ApiError> {
    let error = || ApiError::malformed(format!("malformed percent-encoding in \"{text}\""));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
                let (high, low) = (digit().ok_or_else(error)?, digit().ok_or_else(error)?);
                // Two hex digits are below 256.
                bytes.push(u8::try_from(high << 4 | low).map_err(|_| error())?);
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans() {
        let request = Parameters::parse(Some("columns=a,b&filter=a+%3E+%27%C3%A9%27&limit=5&as_of=17"))
            .and_then(Parameters::scan)
            .expect("valid");
        assert_eq!(request.columns, Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(request.filter.as_deref(), Some("a > 'é'"));
        assert_eq!((request.limit, request.as_of), (Some(5), Some(Time::from_millis(17))));
        let filter = |query| Parameters::parse(Some(query)).and_then(Parameters::scan).map(|request| request.filter);
        assert_eq!(
            filter("key.a=it's&key.b%22=2").expect("valid").as_deref(),
            Some("\"a\" = 'it''s' AND \"b\"\"\" = '2'")
        );
        assert_eq!(filter("filter=a+OR+b&key.c=1").expect("valid").as_deref(), Some("(a OR b\n) AND \"c\" = '1'"));
        assert_eq!(filter("limit=1").expect("valid"), None);
        assert!(filter("key=1").is_err());
    }

    #[test]
    fn keys() {
        let request = Parameters::parse(Some("key.a=1&key.b=x")).and_then(Parameters::key).expect("valid");
        let expected = [("a", "1"), ("b", "x")].map(|(c, v)| (Some(c.to_owned()), Some(v.to_owned())));
        assert_eq!(request.key, Some(expected.to_vec()));
        assert!(Parameters::parse(Some("key=1&key.b=x")).and_then(Parameters::key).is_err());
    }

    #[test]
    fn what_is_malformed() {
        for query in ["limit=x", "limt=5", "limit=1&limit=2", "filter=%zz", "filter=%ff", "columns=a,,b"] {
            let error = Parameters::parse(Some(query)).and_then(Parameters::scan).expect_err(query);
            assert_eq!(error.status, axum::http::StatusCode::BAD_REQUEST, "{query}");
        }
        let error = Parameters::parse(Some("limt=5")).and_then(Parameters::scan).expect_err("unknown");
        assert_eq!(
            error.fields.hint.as_deref(),
            Some("Known parameters: columns, filter, key.<column>, order, limit, cursor, as_of.")
        );
    }
}
