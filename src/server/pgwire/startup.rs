//! Startup: any user by trust, the one database, and the parameters that clients look at.

use std::collections::HashMap;
use std::fmt::Debug;

use async_trait::async_trait;
use futures::Sink;
use pgwire::api::auth::{
    ServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::{ClientInfo, ConnectionGuard, ConnectionHandle, METADATA_DATABASE, METADATA_USER};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::startup::SecretKey;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage, ProtocolVersion};

use super::connection::Connection;
use super::messages::{Severity, error_info};
use crate::types::{Error, Limit, SqlState};

/// The one database.
const DATABASE: &str = "clink";
/// The version that clients take clink for.
const SERVER_VERSION: &str = "16.0";

fn fatal(error: &Error) -> PgWireError {
    PgWireError::UserError(Box::new(error_info(error, Severity::Fatal)))
}

/// Checks what the client asks for, and gives the settings that it wants.
fn check(parameters: &HashMap<String, String>) -> Result<Vec<(String, String)>, Error> {
    let user = parameters.get(METADATA_USER).map_or("", String::as_str);
    // PostgreSQL's rule: without a database, the one named like the user.
    let database = parameters.get(METADATA_DATABASE).map_or(user, String::as_str);
    if database != DATABASE {
        return Err(Error::new(SqlState::UndefinedDatabase, format!("database \"{database}\" does not exist"))
            .hint(format!("The database is named \"{DATABASE}\": psql -d {DATABASE}.")));
    }
    let mut settings = Vec::new();
    for (name, value) in parameters {
        match name.to_ascii_lowercase().as_str() {
            METADATA_USER | METADATA_DATABASE => {}
            "replication" if matches!(value.as_str(), "false" | "off" | "no" | "0") => {}
            "replication" => {
                return Err(Error::unsupported("the replication protocol is not supported")
                    .hint("Leave replication out; read a view with SELECT."));
            }
            "options" => settings.extend(options(value)?),
            "client_encoding" => {
                let encoding = value.trim_matches(['\'', '"']).to_ascii_lowercase();
                // What is only ASCII is UTF-8 too.
                let encoding = if encoding == "sql_ascii" { "utf8".to_owned() } else { encoding };
                settings.push((name.clone(), encoding));
            }
            // Options of the protocol itself, which servers may not know.
            protocol if protocol.starts_with("_pq_.") => {}
            _ => settings.push((name.clone(), value.clone())),
        }
    }
    Ok(settings)
}

/// The settings in `-c name=value --name=value`; a backslash keeps a space.
fn options(text: &str) -> Result<Vec<(String, String)>, Error> {
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let word = words.last_mut();
        match (character, word) {
            ('\\', Some(word)) => word.extend(characters.next()),
            (space, Some(word)) if space.is_whitespace() => {
                if !word.is_empty() {
                    words.push(String::new());
                }
            }
            (other, Some(word)) => word.push(other),
            (_, None) => {}
        }
    }
    let mut settings = Vec::new();
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let assignment = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => words.next(),
            Some(assignment) => Some(assignment.to_owned()),
            None => None,
        };
        let pair = assignment.as_deref().and_then(|assignment| assignment.split_once('='));
        let Some((name, value)) = pair else {
            return Err(Error::new(SqlState::SyntaxError, format!("invalid command-line argument \"{word}\""))
                .hint("Options are written -c name=value."));
        };
        settings.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(settings)
}

/// The parameters that PostgreSQL reports at startup; `settings` are those of the session.
struct Parameters {
    settings: Vec<(&'static str, String)>,
}

impl ServerParameterProvider for Parameters {
    fn server_parameters<C>(&self, client: &C) -> Option<HashMap<String, String>>
    where
        C: ClientInfo,
    {
        let given = |key: &str| client.metadata().get(key).map_or("", String::as_str).to_owned();
        let fixed = [
            ("in_hot_standby", "off".to_owned()),
            ("integer_datetimes", "on".to_owned()),
            ("is_superuser", "on".to_owned()),
            ("server_encoding", "UTF8".to_owned()),
            ("server_version", SERVER_VERSION.to_owned()),
            ("session_authorization", given(METADATA_USER)),
        ];
        let parameters = fixed.into_iter().chain(self.settings.iter().cloned());
        Some(parameters.map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

#[async_trait]
impl StartupHandler for Connection {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let PgWireFrontendMessage::Startup(startup) = message else {
            return Ok(());
        };
        protocol_negotiation(client, &startup).await?;
        save_startup_parameters_to_metadata(client, &startup);
        let wanted = check(client.metadata()).map_err(|error| fatal(&error))?;
        let settings = {
            let mut session = self.session.lock().await;
            session.set_user(client.metadata().get(METADATA_USER).map_or("", String::as_str));
            for (name, value) in wanted {
                session.set_at_start(&name, &value).map_err(|error| fatal(&error))?;
            }
            self.told(&session)
        };
        let taken = self.slot.lock().is_ok_and(|mut slot| slot.take());
        if !taken {
            let error = self
                .limits
                .exceeded(Limit::Sessions, "sorry, too many clients already")
                .hint("Close some connections, or share them with a pool.");
            return Err(fatal(&error));
        }
        // The key under which a cancel request finds the connection.
        let secret = match client.protocol_version() {
            ProtocolVersion::PROTOCOL3_0 => SecretKey::I32(rand::random()),
            _ => SecretKey::Bytes(rand::random::<[u8; 32]>().to_vec().into()),
        };
        let pid = rand::random_range(1..i32::MAX);
        client.set_pid_and_secret_key(pid, secret.clone());
        let (handle, guard) = self.manager.register(pid, secret);
        client.session_extensions().insert::<std::sync::Arc<ConnectionHandle>>(handle);
        client.session_extensions().insert::<ConnectionGuard>(guard);
        finish_authentication(client, &Parameters { settings }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn only_the_one_database() {
        assert!(check(&parameters(&[("user", "me"), ("database", "clink")])).is_ok());
        assert!(check(&parameters(&[("user", "clink")])).is_ok());
        let error = check(&parameters(&[("user", "me")])).expect_err("no such database");
        assert_eq!((error.code(), error.message()), (SqlState::UndefinedDatabase, "database \"me\" does not exist"));
    }

    #[test]
    fn parameters_are_settings() {
        let with = |name, value| check(&parameters(&[("user", "clink"), (name, value)]));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(with("client_encoding", "'UTF8'").expect("settings"), [pair("client_encoding", "utf8")]);
        assert_eq!(with("TimeZone", "Asia/Tokyo").expect("settings"), [pair("TimeZone", "Asia/Tokyo")]);
        assert_eq!(
            with("options", "-c statement_timeout=5s -cTimeZone=UTC --search-path=a\\ b").expect("settings"),
            [pair("statement_timeout", "5s"), pair("TimeZone", "UTC"), pair("search_path", "a b")]
        );
        assert!(with("options", "-d 5").is_err());
        assert!(with("replication", "true").is_err());
    }
}
