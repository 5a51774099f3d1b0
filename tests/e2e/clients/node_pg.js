// node-postgres: values, prepared statements, a block, a cancel by closing. Run: node node_pg.js HOST:PORT
const assert = require('assert');
const { pipeline } = require('stream/promises');
const { Readable } = require('stream');
const { Client, types } = require('pg');
const copies = require('pg-copy-streams');

// Dates as text, so that the zone of this machine has no part in it.
for (const oid of [1082, 1083, 1114, 1184, 1186]) types.setTypeParser(oid, (text) => text);

async function main() {
  const [host, port] = process.argv[2].split(':');
  const client = new Client({ host, port: Number(port), user: 'test', database: 'clink' });
  await client.connect();
  const values = [
    ['smallint', 7, 7],
    ['int', -(2 ** 31), -(2 ** 31)],
    ['bigint', '9223372036854775807', '9223372036854775807'],
    ['real', 1.5, 1.5],
    ['double precision', 0.1, 0.1],
    ['numeric(12,2)', '12345.67', '12345.67'],
    ['numeric', '-1.5', '-1.5'],
    ['varchar(10)', 'abc', 'abc'],
    ['interval', '1 day 02:03:04.5', '1 day 02:03:04.5'],
    ['jsonb', { b: [1, null], a: 'x' }, { a: 'x', b: [1, null] }],
    ['text', 'é €\n"\'\\', 'é €\n"\'\\'],
    ['boolean', true, true],
    ['bytea', Buffer.from([0, 255, 39]), Buffer.from([0, 255, 39])],
    ['date', '2020-02-29', '2020-02-29'],
    ['time', '23:59:59.5', '23:59:59.5'],
    ['timestamp', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999'],
    ['timestamptz', '2013-01-01T05:00:00Z', '2013-01-01 05:00:00+00'],
    ['uuid', '00112233-4455-6677-8899-aabbccddeeff', '00112233-4455-6677-8899-aabbccddeeff'],
    ['int[]', [1, null, 3], [1, null, 3]],
    ['text[]', ['a b', 'q"\\', ''], ['a b', 'q"\\', '']],
  ];
  for (const [index, [type, given, wanted]] of values.entries()) {
    await client.query(`CREATE TABLE v${index} (k int PRIMARY KEY, a ${type})`);
    for (const name of [undefined, `p${index}`]) {
      const k = name ? 2 : 1;
      await client.query({ name, text: `INSERT INTO v${index} VALUES ($1, $2)`, values: [k, given] });
      const got = await client.query({ text: `SELECT a FROM v${index} WHERE k = $1`, values: [k] });
      assert.deepStrictEqual(got.rows, [{ a: wanted }], type);
      const none = await client.query({ text: `UPDATE v${index} SET a = $1 WHERE k = $2 RETURNING a`, values: [null, k] });
      assert.deepStrictEqual([none.rowCount, none.rows], [1, [{ a: null }]], type);
    }
  }
  await client.query('BEGIN');
  await client.query('INSERT INTO v1 VALUES ($1, $2)', [10, 10]);
  await client.query('ROLLBACK');
  const count = await client.query('SELECT count(*)::int AS n FROM v1');
  assert.strictEqual(count.rows[0].n, 2);
  await assert.rejects(client.query('SELECT nope'), (error) => error.code === '42703' && error.position === '8');
  const several = await client.query('SELECT 1 AS a; SELECT 2 AS b');
  assert.deepStrictEqual(several.map((one) => one.rows), [[{ a: 1 }], [{ b: 2 }]]);
  const copied = client.query(copies.from('COPY v1 FROM STDIN'));
  await pipeline(Readable.from(['20\t1\n', '21\t\\N\n']), copied);
  assert.strictEqual(copied.rowCount, 2);
  const parts = [];
  await pipeline(client.query(copies.to('COPY (SELECT * FROM v1 WHERE k >= 20 ORDER BY k) TO STDOUT')), async (source) => {
    for await (const part of source) parts.push(part);
  });
  assert.strictEqual(Buffer.concat(parts).toString(), '20\t1\n21\t\\N\n');
  // A cancel goes over a connection of its own.
  const slow = client.query('SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b');
  setTimeout(() => {
    const message = Buffer.alloc(16);
    [16, 80877102, client.processID, client.secretKey].forEach((number, at) => message.writeInt32BE(number, 4 * at));
    require('net').connect(Number(port), host, function () { this.end(message); });
  }, 300);
  const asked = Date.now();
  await assert.rejects(slow, (error) => error.code === '57014');
  assert(Date.now() - asked < 1300);
  await client.end();
  console.log('ok');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
