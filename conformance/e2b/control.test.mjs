// What the control plane does: making, finding, pausing and ending sandboxes.
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { AuthenticationError, FileNotFoundError, InvalidArgumentError, NotEnoughSpaceError, Sandbox, SandboxError, SandboxNotFoundError, TimeoutError } from 'e2b'
import { failure, test, until, within } from './sandbox.mjs'

const made = []

async function create(template, opts) {
  const box = await (opts ? Sandbox.create(template, opts) : Sandbox.create(template))
  made.push(box)
  return box
}

after(async () => {
  for (const box of made) await box.kill()
})

async function all(paginator) {
  const list = []
  let pages = 0
  while (paginator.hasNext) {
    list.push(...(await paginator.nextItems()))
    pages++
  }
  return { list, pages }
}

test('getInfo tells what was asked for', async () => {
  const begin = Date.now()
  const box = await create('base', { timeoutMs: 120_000, metadata: { 'a key': 'ü & =' }, envs: { GLOBAL: 'yes' } })
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.equal(info.templateId, 'base')
  assert.equal(info.name, 'base')
  assert.deepEqual(info.metadata, { 'a key': 'ü & =' })
  assert.equal(info.state, 'running')
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64, `${info.cpuCount} ${info.memoryMB}`)
  const left = info.endAt.getTime() - begin
  assert.ok(left > 60_000 && left < 600_000, `ends in ${left} ms`)
  assert.ok(info.startedAt.getTime() < Date.now() + 60_000)
  const env = await box.commands.run('echo $GLOBAL; whoami; pwd')
  assert.equal(env.stdout, 'yes\nuser\n/home/user\n')
})

test('programs find out where they are', async () => {
  const origin = await create('base', { envs: { E2B_SANDBOX_ID: 'somebody else', KEPT: 'yes' } })
  await knowsItself(origin, 'base')
  await origin.pause()
  await knowsItself(await Sandbox.connect(origin.sandboxId), 'base')
  await origin.pause({ keepMemory: false })
  await knowsItself(await Sandbox.connect(origin.sandboxId), 'base')
  assert.equal((await origin.commands.run('echo $KEPT')).stdout, 'yes\n')
  const [twin] = await origin.fork()
  made.push(twin)
  await knowsItself(twin, 'base')
  await knowsItself(origin, 'base')
  const { snapshotId } = await origin.createSnapshot()
  try {
    await knowsItself(await create(snapshotId), snapshotId)
  } finally {
    await Sandbox.deleteSnapshot(snapshotId)
  }
})

// knowsItself looks for what E2B's sandboxes tell their programs.
async function knowsItself(box, template) {
  const seen = await box.commands.run(
    'echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID; cd /run/e2b; ls -A; for f in .E2B_*; do cat $f; echo; done')
  const [id, names] = [box.sandboxId, ['.E2B_SANDBOX', '.E2B_SANDBOX_ID', '.E2B_TEMPLATE_ID']]
  assert.deepEqual(seen.stdout.trim().split('\n'), [`true ${id} ${template}`, ...names, 'true', id, template])
}

test('setTimeout shortens and lengthens, connect only lengthens', async () => {
  const box = await create('base', { timeoutMs: 600_000 })
  const left = async () => (await box.getInfo()).endAt.getTime() - Date.now()
  await box.setTimeout(3_600_000)
  assert.ok((await left()) > 3_000_000)
  await box.setTimeout(900_000)
  assert.ok((await left()) < 1_000_000)
  await Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 })
  assert.ok((await left()) > 600_000, 'connect does not shorten')
  await Sandbox.connect(box.sandboxId, { timeoutMs: 3_600_000 })
  assert.ok((await left()) > 3_000_000)
})

test('list: metadata, state, pages', async () => {
  const mark = `list ${Math.random()} %+&=/ü`
  const boxes = []
  for (let i = 0; i < 3; i++) boxes.push(await create('base', { metadata: { mark, n: String(i) } }))
  await boxes[1].pause()
  const ids = boxes.map((b) => b.sandboxId)
  const found = await all(Sandbox.list({ query: { metadata: { mark } }, limit: 2 }))
  assert.equal(found.pages, 2)
  assert.deepEqual(found.list.map((b) => b.sandboxId), [...ids].reverse(), 'the latest first')
  assert.deepEqual(found.list.map((b) => b.state), ['running', 'paused', 'running'])
  const running = await all(Sandbox.list({ query: { metadata: { mark }, state: ['running'] } }))
  assert.deepEqual(running.list.map((b) => b.metadata.n), ['2', '0'])
  const both = await all(Sandbox.list({ query: { metadata: { mark }, state: ['running', 'paused'] } }))
  assert.equal(both.list.length, 3)
  const none = await all(Sandbox.list({ query: { metadata: { mark, n: '7' } } }))
  assert.deepEqual(none.list, [])
})

test('pause and connect keep processes, memory and files', async () => {
  const box = await create('base', { envs: { KEPT: 'yes' } })
  const handle = await box.commands.run('i=0; while true; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done', { background: true, timeoutMs: 0 })
  await box.files.write('kept', 'file')
  await until('the count', async () => Number(await box.files.read('/tmp/count').catch(() => 0)) > 2)
  assert.equal(await box.pause(), true)
  assert.equal(await box.pause(), false, 'it is paused already')
  assert.equal((await box.getInfo()).state, 'paused')
  assert.equal(await box.isRunning(), false)
  await failure(box.files.read('kept'), TimeoutError)
  const again = await Sandbox.connect(box.sandboxId)
  assert.equal(again.sandboxId, box.sandboxId)
  assert.equal(await again.isRunning(), true)
  assert.equal(await again.files.read('kept'), 'file')
  assert.equal((await again.commands.run('echo $KEPT')).stdout, 'yes\n')
  const count = Number(await again.files.read('/tmp/count'))
  await until('more', async () => Number(await again.files.read('/tmp/count')) > count)
  assert.ok((await again.commands.list()).some((p) => p.pid === handle.pid), 'the process goes on')
  assert.equal(await again.kill(), true)
})

test('pause without memory keeps files', async () => {
  const box = await create('base', { metadata: { disk: 'only' } })
  await box.files.write('kept', 'file')
  await box.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  assert.equal(await box.pause({ keepMemory: false }), true)
  assert.equal((await box.getInfo()).state, 'paused')
  const again = await Sandbox.connect(box.sandboxId)
  assert.equal(await again.files.read('kept'), 'file')
  assert.deepEqual(await again.commands.list(), [])
  assert.deepEqual((await again.getInfo()).metadata, { disk: 'only' })
})

test('a paused sandbox can be killed', async () => {
  const box = await create('base')
  await box.pause()
  assert.equal(await Sandbox.kill(box.sandboxId), true)
  assert.equal(await Sandbox.kill(box.sandboxId), false)
  await failure(Sandbox.connect(box.sandboxId), SandboxNotFoundError)
})

test('a timeout ends a sandbox', async () => {
  const box = await create('base', { timeoutMs: 60_000 })
  await box.setTimeout(1_000)
  await until('its end', async () => !(await box.isRunning()), 45_000)
  await failure(box.commands.run('true'), SandboxNotFoundError)
  await failure(box.getInfo(), SandboxNotFoundError)
  assert.equal(await box.kill(), false)
})

test('a timeout pauses a sandbox that wants it, and a request resumes it', async () => {
  const box = await create('base', { timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  assert.deepEqual((await box.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await box.files.write('kept', 'file')
  await box.setTimeout(1_000)
  await until('its pause', async () => (await box.getInfo()).state === 'paused', 45_000)
  assert.equal(await box.isRunning(), false, 'asking is no use')
  assert.equal(await box.files.read('kept'), 'file')
  const info = await box.getInfo()
  assert.equal(info.state, 'running')
  assert.ok(info.endAt.getTime() - Date.now() > 60_000, 'for five minutes')
})

test('metrics', async () => {
  const box = await create('base')
  const [m, ...more] = await box.getMetrics()
  assert.deepEqual(more, [])
  assert.ok(m.memUsed > 0 && m.memTotal > 0 && m.diskTotal > 0 && m.cpuCount >= 1 && m.cpuUsedPct >= 0, JSON.stringify(m))
  const hour = 3_600_000
  assert.deepEqual(await box.getMetrics({ start: new Date(Date.now() - 2 * hour), end: new Date(Date.now() - hour) }), [])
  const now = await box.getMetrics({ start: new Date(Date.now() - hour), end: new Date(Date.now() + hour) })
  assert.equal(now.length, 1)
})

test('a port is open to everybody, unless that is forbidden', async () => {
  const serve = async (box) => {
    await box.files.write('index.html', 'hello')
    await box.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
    const at = (headers) => fetch(process.env.E2B_SANDBOX_URL, { headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '8000', ...headers } })
    return at
  }
  const open = await create('base')
  assert.match(open.getHost(8000), new RegExp(`^8000-${open.sandboxId}\\.`))
  const at = await serve(open)
  await until('the port', async () => (await at()).status === 200)
  const closed = await create('base', { network: { allowPublicTraffic: false } })
  const behind = await serve(closed)
  assert.ok(closed.trafficAccessToken)
  await until('the port', async () => (await behind({ 'e2b-traffic-access-token': closed.trafficAccessToken })).status === 200)
  for (const token of [undefined, 'wrong', closed.envdAccessToken]) {
    const res = await behind(token === undefined ? {} : { 'e2b-traffic-access-token': token })
    assert.equal(res.status, 403, `${token}`)
    assert.equal((await res.json()).code, 403)
  }
})

test('headers of requests are set outside, and their values are never shown', async () => {
  const headers = { 'X-Token': 'a secret value' }
  const told = { 'api.example.com': [{ transform: { headers: { 'X-Token': '${E2B_0}' } } }] }
  const box = await create('base', { network: { rules: { 'api.example.com': [{ transform: { headers } }] } } })
  const { network } = await box.getInfo()
  assert.deepEqual(network.rules, told)
  const { stdout } = await box.commands.run('env; cat "$SSL_CERT_FILE" | grep -c BEGIN')
  assert.match(stdout, /^SSL_CERT_FILE=/m)
  assert.doesNotMatch(stdout, /a secret value/)
  await box.updateNetwork({})
  assert.equal((await box.getInfo()).network.rules, undefined)
  await box.updateNetwork({ rules: { 'api.example.com': [{ transform: () => ({ headers }) }] } })
  assert.deepEqual((await box.getInfo()).network.rules, told)
})

test('the network is what was asked for', async () => {
  const offline = await create('base', { allowInternetAccess: false })
  const reach = 'python3 -c "import socket; socket.create_connection((\'192.0.2.1\', 80), 2)" 2>&1; true'
  assert.match((await offline.commands.run(reach)).stdout, /unreachable|refused|timed out/i)
  assert.equal((await offline.getInfo()).allowInternetAccess, false)
  await failure(offline.updateNetwork({ allowInternetAccess: true }), SandboxError, /409/)
  const online = await create('base')
  await online.updateNetwork({ denyOut: ['0.0.0.0/0'], allowOut: ['192.0.2.0/24'] })
  assert.deepEqual((await online.getInfo()).network.allowOut, ['192.0.2.0/24'])
  await failure(online.updateNetwork({ denyOut: ['192.0.2.0/24'], allowOut: ['192.0.2.1'] }), SandboxError, /501/)
})

test('errors of the control plane have their classes', async () => {
  await failure(Sandbox.create({ apiKey: `e2b_${'1'.repeat(40)}` }), AuthenticationError)
  await failure(Sandbox.create('no-such-template'), SandboxError, /404.*no-such-template.*not found/)
  await failure(Sandbox.connect('i0000000000000000000'), SandboxNotFoundError)
  await failure(Sandbox.getInfo('i0000000000000000000'), SandboxNotFoundError)
  await failure(Sandbox.setTimeout('i0000000000000000000', 1000), SandboxNotFoundError)
  assert.equal(await Sandbox.kill('i0000000000000000000'), false)
  await failure(Sandbox.create('base', { metadata: { 'sandpit.e2b': '{}' } }), SandboxError, /400/)
  await failure(Sandbox.create('base', { mcp: { browserbase: {} } }), SandboxError, /Failed to start MCP gateway/)
  const box = await create('base')
  await failure(box.createSnapshot({ name: 'not a name' }), SandboxError, /400.*name/)
})

test('errors inside have their classes, and never hang', async () => {
  const box = await create('base')
  await failure(within('a bad path', box.files.read('/no/such/file')), FileNotFoundError)
  await failure(within('a directory', box.files.read('/etc')), InvalidArgumentError)
  await failure(within('an unknown user', box.commands.run('true', { user: 'nobody-knows' })), AuthenticationError)
  await failure(within('a directory that is missing', box.commands.run('true', { cwd: '/no/such' })), InvalidArgumentError)
  await failure(within('a command that takes too long', box.commands.run('sleep 100', { timeoutMs: 1000 })), TimeoutError)
  const port = await fetch(process.env.E2B_SANDBOX_URL, { headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '9' } })
  assert.equal(port.status, 502)
  assert.deepEqual(await port.json(), { sandboxId: box.sandboxId, code: 502, message: 'The sandbox is running but port is not open', port: 9 })
  for (const path of ['/init', '/INIT', '//init', '/x/../init']) {
    const res = await fetch(process.env.E2B_SANDBOX_URL + path, {
      method: 'POST', body: '{"accessToken":"mine"}',
      headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': box.envdAccessToken },
    })
    assert.ok(res.status >= 400, `${path}: ${res.status}`)
  }
  assert.equal((await box.commands.run('echo still here')).stdout, 'still here\n')
})

test('a template with a gateway for MCP has it started', async () => {
  const maker = await create('base')
  await maker.files.write('/usr/local/bin/mcp-gateway', '#!/bin/sh\necho "$2" > /tmp/config; echo "$GATEWAY_ACCESS_TOKEN" > /tmp/token\n', { user: 'root' })
  await maker.commands.run('chmod 755 /usr/local/bin/mcp-gateway', { user: 'root' })
  const { snapshotId } = await maker.createSnapshot()
  try {
    const box = await create(snapshotId, { mcp: { browserbase: { apiKey: 'key' } } })
    assert.deepEqual(JSON.parse(await box.files.read('/tmp/config')), { browserbase: { apiKey: 'key' } })
    assert.equal((await box.files.read('/tmp/token')).trim(), await box.getMcpToken())
  } finally {
    await Sandbox.deleteSnapshot(snapshotId)
  }
})

test('a full disk is told', async () => {
  const box = await create('base')
  await box.commands.run('dd if=/dev/zero of=/tmp/fill bs=1M count=100000 2>/dev/null; dd if=/dev/zero of=/tmp/rest bs=1k 2>/dev/null; true', { timeoutMs: 50_000 })
  await failure(within('the write', box.files.write('/home/user/more', 'x'.repeat(1 << 20))), NotEnoughSpaceError)
})
