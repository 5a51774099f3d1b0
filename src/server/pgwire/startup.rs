//! Startup: any user by trust, the one database, and the parameters that clients look at.

use std::collections::HashMap;
use std::fmt::Debug;

use async_trait::async_trait;
use futures::Sink;
use pgwire::api::auth::{
    ServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::{
    ClientInfo, ConnectionGuard, ConnectionHandle, METADATA_APPLICATION_NAME, METADATA_DATABASE, METADATA_USER,
};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::startup::SecretKey;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage, ProtocolVersion};

use super::connection::Connection;
use super::messages::{Severity, error_info};
use crate::types::{Error, SqlState};

/// The one database.
const DATABASE: &str = "clink";
/// The version that clients take clink for.
const SERVER_VERSION: &str = "16.0";

fn fatal(error: &Error) -> PgWireError {
    PgWireError::UserError(Box::new(error_info(error, Severity::Fatal)))
}

/// Checks what the client asks for.
fn check(parameters: &HashMap<String, String>) -> Result<(), Error> {
    let user = parameters.get(METADATA_USER).map_or("", String::as_str);
    // PostgreSQL's rule: without a database, the one named like the user.
    let database = parameters.get(METADATA_DATABASE).map_or(user, String::as_str);
    if database != DATABASE {
        return Err(Error::new(SqlState::UndefinedDatabase, format!("database \"{database}\" does not exist"))
            .hint(format!("The database is named \"{DATABASE}\": psql -d {DATABASE}.")));
    }
    for (name, value) in parameters {
        let refuse = |text: String, hint: &str| Err(Error::unsupported(text).hint(hint));
        match name.to_ascii_lowercase().as_str() {
            METADATA_USER | METADATA_DATABASE | METADATA_APPLICATION_NAME => {}
            "client_encoding" => {
                let encoding = value.trim_matches(['\'', '"']).to_ascii_uppercase().replace(['-', '_'], "");
                if !matches!(encoding.as_str(), "UTF8" | "UNICODE" | "SQLASCII") {
                    return refuse(format!("client encoding \"{value}\" is not supported"), "Use UTF8.");
                }
            }
            "replication" if !matches!(value.as_str(), "false" | "off" | "no" | "0") => {
                return refuse("the replication protocol is not supported".to_owned(), "Leave replication out.");
            }
            "replication" => {}
            // What clients ask for and always get.
            "datestyle" if value.to_ascii_uppercase().starts_with("ISO") => {}
            "timezone" if matches!(value.to_ascii_uppercase().as_str(), "UTC" | "GMT" | "ETC/UTC" | "Z") => {}
            "intervalstyle" if value.eq_ignore_ascii_case("postgres") => {}
            // Floats are always printed in as many digits as they have.
            "extra_float_digits" if value.parse::<i8>().is_ok_and(|digits| digits >= 0) => {}
            "options" if value.trim().is_empty() => {}
            "options" => {
                return refuse(
                    "startup options are not supported".to_owned(),
                    "Unset PGOPTIONS and use SET once connected.",
                );
            }
            // Options of the protocol itself, which servers may not know.
            protocol if protocol.starts_with("_pq_.") => {}
            _ => {
                return refuse(
                    format!("startup parameter \"{name}\" = \"{value}\" is not supported"),
                    "Leave it out and use SET once connected.",
                );
            }
        }
    }
    Ok(())
}

/// The parameters that PostgreSQL reports at startup.
struct Parameters;

impl ServerParameterProvider for Parameters {
    fn server_parameters<C>(&self, client: &C) -> Option<HashMap<String, String>>
    where
        C: ClientInfo,
    {
        let given = |key: &str| client.metadata().get(key).map_or("", String::as_str).to_owned();
        let parameters = [
            ("application_name", given(METADATA_APPLICATION_NAME)),
            ("client_encoding", "UTF8".to_owned()),
            ("DateStyle", "ISO, MDY".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            ("in_hot_standby", "off".to_owned()),
            ("integer_datetimes", "on".to_owned()),
            ("IntervalStyle", "postgres".to_owned()),
            ("is_superuser", "on".to_owned()),
            ("server_encoding", "UTF8".to_owned()),
            ("server_version", SERVER_VERSION.to_owned()),
            ("session_authorization", given(METADATA_USER)),
            ("standard_conforming_strings", "on".to_owned()),
            ("TimeZone", "UTC".to_owned()),
        ];
        Some(parameters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
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
        check(client.metadata()).map_err(|error| fatal(&error))?;
        let taken = self.slot.lock().is_ok_and(|mut slot| slot.take());
        if !taken {
            let error = Error::new(SqlState::TooManyConnections, "sorry, too many clients already")
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
        finish_authentication(client, &Parameters).await
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
    fn parameters_are_kept_or_refused() {
        let with = |name, value| check(&parameters(&[("user", "clink"), (name, value)]));
        assert!(with("client_encoding", "'utf-8'").is_ok());
        assert!(with("extra_float_digits", "2").is_ok());
        assert!(with("DateStyle", "ISO").is_ok());
        for (name, value) in
            [("client_encoding", "LATIN1"), ("TimeZone", "Asia/Tokyo"), ("options", "-c a=b"), ("x", "y")]
        {
            assert_eq!(with(name, value).expect_err(name).code(), SqlState::FeatureNotSupported);
        }
    }
}
