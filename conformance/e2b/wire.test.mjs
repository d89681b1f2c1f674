// What E2B's Python SDK sends where it is not what the JavaScript one sends: watches that
// are asked, forms with a path in two places, compressed questions.
import assert from 'node:assert/strict'
import { gunzipSync, gzipSync } from 'node:zlib'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox } from 'e2b'
import { sharedSandbox, test, until } from './sandbox.mjs'

const { E2B_API_URL, E2B_API_KEY, E2B_SANDBOX_URL } = process.env
const shared = sharedSandbox()

// send asks the guest of the sandbox.
function send(path, { box = shared.box, headers, ...rest } = {}) {
  const ids = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': box.envdAccessToken }
  return fetch(E2B_SANDBOX_URL + path, { method: 'POST', ...rest, headers: { ...ids, 'User-Agent': 'connect-python', ...headers } })
}

// call makes one of its simple calls.
async function call(method, message, headers = {}, pack = (b) => b) {
  const body = pack(Buffer.from(JSON.stringify(message)))
  const plain = { 'connect-protocol-version': '1', 'content-encoding': 'identity', 'content-type': 'application/json' }
  const res = await send(`/filesystem.Filesystem/${method}`, { body, headers: { ...plain, ...headers } })
  return { status: res.status, ...(await res.json()) }
}

// form is what httpx makes of files.
function form(files) {
  const parts = files.map(([name, text]) => `--limit\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\nContent-Type: text/plain\r\n\r\n${text}\r\n`)
  return { body: `${parts.join('')}--limit--\r\n`, headers: { 'Content-Type': 'multipart/form-data; boundary=limit' } }
}

const write = async (path, text) => assert.equal((await send(`/files?path=${encodeURIComponent(path)}`, form([[path, text]]))).status, 200)
const told = (events, name) => (events ?? []).filter((e) => e.name === name).map((e) => e.type.slice('EVENT_TYPE_'.length))

test('a watch that is asked', async () => {
  await call('MakeDir', { path: 'watched' })
  const { watcherId } = await call('CreateWatcher', { path: 'watched' })
  await write('watched/file', 'new')
  // At once, and no more than that: its tests count.
  assert.deepEqual(told((await call('GetWatcherEvents', { watcherId })).events, 'file'), ['CREATE', 'CHMOD', 'WRITE'])
  await write('watched/file', 'again')
  assert.deepEqual(told((await call('GetWatcherEvents', { watcherId })).events, 'file'), ['WRITE'])
  assert.deepEqual((await call('GetWatcherEvents', { watcherId })).events ?? [], [])
  assert.equal((await call('RemoveWatcher', { watcherId })).status, 200)
  const gone = await call('GetWatcherEvents', { watcherId })
  assert.deepEqual([gone.status, gone.code], [404, 'not_found'])
})

test('a watch that is asked, of directories below that come later', async () => {
  await call('MakeDir', { path: 'deep' })
  const { watcherId } = await call('CreateWatcher', { path: 'deep', recursive: true })
  await call('MakeDir', { path: 'deep/late' })
  await write('deep/late/file', 'x')
  const seen = []
  const reported = (type) => until(() => `${type} of the file; reported: ${JSON.stringify(seen)}`, async () => {
    seen.push(...((await call('GetWatcherEvents', { watcherId })).events ?? []))
    return told(seen, 'late/file').includes(type)
  })
  // The file may be written before the new directory is watched: then it is only found there.
  await reported('CREATE')
  assert.equal(told(seen, 'late')[0], 'CREATE')
  seen.length = 0
  await write('deep/late/file', 'xy')
  await reported('WRITE')
  assert.equal((await call('CreateWatcher', { path: 'no-such' })).code, 'not_found')
  assert.equal((await call('CreateWatcher', { path: '/etc/passwd' })).code, 'invalid_argument')
})

test('files in forms, as httpx makes them', async () => {
  await write('a dir/ü.txt', 'one')
  assert.equal(await shared.box.files.read('/home/user/a dir/ü.txt'), 'one')
  const several = await send('/files', form([['several/a', '1'], ['/tmp/several/b', '2']]))
  assert.deepEqual(await several.json(), [
    { name: 'a', path: '/home/user/several/a', type: 'file' }, { name: 'b', path: '/tmp/several/b', type: 'file' },
  ])
  const roots = await send('/files?path=mine&username=root', form([['mine', '3']]))
  assert.equal((await roots.json())[0].path, '/root/mine')
})

test('files without forms, packed and not', async () => {
  const octets = { 'Content-Type': 'application/octet-stream' }
  assert.equal((await send('/files?path=plain', { body: 'plain', headers: octets })).status, 200)
  assert.equal((await send('/files?path=packed', { body: gzipSync('packed'), headers: { ...octets, 'Content-Encoding': 'gzip' } })).status, 200)
  assert.equal(await shared.box.files.read('plain') + await shared.box.files.read('packed'), 'plainpacked')
})

test('questions with its headers, packed and with a time limit', async () => {
  const wanted = '/etc/passwd'
  assert.equal((await call('Stat', { path: wanted })).entry.path, wanted)
  assert.equal((await call('Stat', { path: wanted }, { 'connect-timeout-ms': '60000' })).entry.path, wanted)
  assert.equal((await call('Stat', { path: wanted }, { 'content-encoding': 'gzip' }, gzipSync)).entry.path, wanted)
  assert.equal((await call('Stat', { path: wanted, unknown: { of: 'a later version' } })).entry?.path ?? wanted, wanted)
})

test('a command whose stream is packed', async () => {
  const message = gzipSync(JSON.stringify({ process: { cmd: '/bin/bash', args: ['-l', '-c', 'id -un; exit 3'] }, stdin: false }))
  const head = Buffer.alloc(5)
  head.writeUInt8(1, 0)
  head.writeUInt32BE(message.length, 1)
  const res = await send('/process.Process/Start', {
    body: Buffer.concat([head, message]),
    headers: {
      'connect-protocol-version': '1', 'connect-content-encoding': 'gzip', 'connect-accept-encoding': 'gzip', 'content-type': 'application/connect+json',
      'connect-timeout-ms': '60000', 'Keepalive-Ping-Interval': '50', Authorization: `Basic ${Buffer.from('root:').toString('base64')}`,
    },
  })
  assert.equal(res.status, 200)
  let rest = Buffer.from(await res.arrayBuffer())
  const events = []
  while (rest.length > 0) {
    const [flags, end] = [rest.readUInt8(0), 5 + rest.readUInt32BE(1)]
    const data = rest.subarray(5, end)
    events.push(JSON.parse(flags & 1 ? gunzipSync(data) : data))
    rest = rest.subarray(end)
  }
  assert.equal(Buffer.from(events.find((e) => e.event?.data)?.event.data.stdout, 'base64').toString(), 'root\n')
  assert.equal(events.find((e) => e.event?.end)?.event.end.exitCode, 3)
})

test('a sandbox made as it makes one', async () => {
  const headers = { 'X-API-KEY': E2B_API_KEY, 'Content-Type': 'application/json', lang: 'python', publisher: 'e2b', sdk_runtime: 'python' }
  const body = JSON.stringify({
    templateID: 'base', timeout: 60, autoPause: false, metadata: {}, envVars: {}, secure: true, allow_internet_access: true, mcp: null, network: null,
  })
  const res = await fetch(`${E2B_API_URL}/sandboxes`, { method: 'POST', body, headers })
  assert.equal(res.status, 201)
  const { sandboxID } = await res.json()
  const box = await Sandbox.connect(sandboxID)
  assert.equal((await box.commands.run('echo hello')).stdout, 'hello\n')
  assert.equal(await box.kill(), true)
  for (const end = Date.now() + 10_000; (await send('/health', { box, method: 'GET' })).status !== 502; await sleep(50)) assert.ok(Date.now() < end)
})
