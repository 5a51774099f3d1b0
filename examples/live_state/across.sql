-- A job's live GROUP BY state, read by psql, by jobs of a second server, and by pyarrow.
--
--   psql -h 127.0.0.1 -p 7432 -U me -v http=http://127.0.0.1:8081 -v second=7433 -f examples/live_state/across.sql clink
--
-- http is the address of the first server's HTTP, second the port of the second server's PostgreSQL.
\set first :PORT

-- The first server has a job that keeps the balance of every account.
CREATE TABLE payments (id int PRIMARY KEY, account text NOT NULL, amount numeric(12,2) NOT NULL);
CREATE MATERIALIZED VIEW balances WITH (retain_history = '1 hour') AS
SELECT account, count(*) AS n, sum(amount) AS balance FROM payments GROUP BY account;
INSERT INTO payments VALUES (1, 'ada', 10.00), (2, 'bob', 5.50), (3, 'ada', 2.25);
SELECT * FROM balances ORDER BY account;

-- The second server: as the balances are now, and as they are from now on.
\connect - - - :second
CREATE TABLE balances_now (account text, n bigint, balance numeric(38,2))
WITH (connector = 'queryable_state', url = :'http', view = 'balances');
CREATE TABLE balances (account text PRIMARY KEY, n bigint, balance numeric(38,2))
WITH (connector = 'queryable_state', url = :'http', view = 'balances', mode = 'changes');
CREATE MATERIALIZED VIEW rich AS SELECT account, balance FROM balances WHERE balance > 6;
SELECT * FROM balances_now ORDER BY account;

-- What changes on the first server changes on the second, also when either was killed meanwhile.
\connect - - - :first
UPDATE payments SET amount = 7.50 WHERE id = 2;
DELETE FROM payments WHERE account = 'ada';
INSERT INTO payments VALUES (4, 'cyd', 8.00);
SELECT * FROM balances ORDER BY account;
\! sleep 1
\connect - - - :second
SELECT * FROM balances ORDER BY account;
SELECT * FROM rich ORDER BY account;
SELECT * FROM balances_now ORDER BY account;

-- pyarrow reads the first over HTTP.
\setenv CLINK_HTTP :http
\! python3 -c "import os, urllib.request as r, pyarrow.ipc as ipc; print(ipc.open_stream(r.urlopen(os.environ['CLINK_HTTP'] + '/api/v1/views/balances/scan.arrow')).read_all().sort_by('account').to_pylist())"
