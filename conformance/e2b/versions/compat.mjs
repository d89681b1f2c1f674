// What programs do with the SDK, for any version of it: SDK names the package. Writes
// one line of JSON for each thing that was tried.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

const sdk = await import(process.env.SDK)
const { Sandbox } = sdk
const mark = `compat ${Math.random()}`
let box

async function rejected(promise, name) {
  const error = await promise.then(() => assert.fail('it succeeds'), (e) => e)
  const names = []
  for (let at = error; at && at.constructor !== Object; at = Object.getPrototypeOf(at)) names.push(at.constructor.name)
  assert.ok(names.includes(name), `${names[0]} is no ${name}: ${error.stack}`)
}

async function until(what, probe) {
  for (const end = Date.now() + 20_000; !(await probe()); await sleep(50)) {
    assert.ok(Date.now() < end, `waited in vain: ${what}`)
  }
}

const checks = {
  'create with metadata and environment': async () => {
    box = await Sandbox.create('base', { metadata: { mark }, envs: { GLOBAL: 'yes' }, timeoutMs: 300_000 })
    assert.equal((await box.commands.run('echo $GLOBAL')).stdout, 'yes\n')
  },
  'info and list': async () => {
    assert.equal((await box.getInfo()).sandboxId, box.sandboxId)
    const list = Sandbox.list({ query: { metadata: { mark } } })
    const found = await list.nextItems()
    assert.deepEqual(found.map((b) => b.sandboxId), [box.sandboxId])
    assert.equal(list.hasNext, false)
  },
  'commands: output, exit code, user, directory': async () => {
    const result = await box.commands.run('whoami; pwd; echo problem >&2', { cwd: '/tmp' })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['user\n/tmp\n', 'problem\n', 0])
    assert.equal((await box.commands.run('id -u', { user: 'root' })).stdout, '0\n')
    await rejected(box.commands.run('exit 3'), 'CommandExitError')
    await rejected(box.commands.run('sleep 60', { timeoutMs: 1000 }), 'TimeoutError')
  },
  'commands: background, input, list, connect, kill': async () => {
    const handle = await box.commands.run('read line; echo got $line; sleep 100', { background: true, stdin: true, timeoutMs: 0 })
    await box.commands.sendStdin(handle.pid, 'input\n')
    await until('the output', () => handle.stdout === 'got input\n')
    assert.ok((await box.commands.list()).some((p) => p.pid === handle.pid))
    const again = await box.commands.connect(handle.pid)
    assert.equal(await box.commands.kill(handle.pid), true)
    await rejected(handle.wait(), 'CommandExitError')
    await rejected(again.wait(), 'CommandExitError')
    assert.equal(await box.commands.kill(handle.pid), false)
  },
  'files: write, read, list, move, remove': async () => {
    await box.files.write('dir/file ü', 'text')
    assert.equal(await box.files.read('dir/file ü'), 'text')
    await box.files.write('dir/bytes', new Uint8Array([0, 1, 255]).buffer)
    assert.deepEqual([...(await box.files.read('dir/bytes', { format: 'bytes' }))], [0, 1, 255])
    assert.deepEqual((await box.files.list('dir')).map((f) => f.name).sort(), ['bytes', 'file ü'])
    await box.files.rename('dir/bytes', 'dir/moved')
    assert.equal(await box.files.exists('dir/bytes'), false)
    assert.equal(await box.files.exists('dir/moved'), true)
    await box.files.remove('dir')
    assert.equal(await box.files.exists('dir'), false)
    await rejected(box.files.read('/no/such/file'), 'NotFoundError')
  },
  'files: watch': async () => {
    await box.files.makeDir('watched')
    const seen = []
    const handle = await box.files.watchDir('watched', (e) => { seen.push(e.name) })
    await box.files.write('watched/new', 'x')
    await until('the event', () => seen.includes('new'))
    await handle.stop()
  },
  'files: signed URLs': async () => {
    await box.files.write('signed', 'by URL')
    const url = await box.downloadUrl('signed', { useSignatureExpiration: 60_000 })
    assert.equal(await (await fetch(url)).text(), 'by URL')
  },
  'terminals': async () => {
    let text = ''
    const pty = await box.pty.create({ cols: 80, rows: 24, onData: (data) => { text += new TextDecoder().decode(data) } })
    await box.pty.sendInput(pty.pid, new TextEncoder().encode('echo $((6*7))\n'))
    await until('the answer', () => text.includes('42'))
    assert.equal(await box.pty.kill(pty.pid), true)
  },
  'timeout, metrics, host names': async () => {
    await box.setTimeout(600_000)
    assert.ok((await box.getInfo()).endAt.getTime() > Date.now() + 400_000)
    assert.equal((await box.getMetrics()).length, 1)
    assert.match(box.getHost(3000), new RegExp(`^3000-${box.sandboxId}`))
  },
  'pause and connect': async () => {
    await box.files.write('kept', 'file')
    await (box.pause ?? box.betaPause).call(box)
    assert.equal(await box.isRunning(), false)
    box = await Sandbox.connect(box.sandboxId)
    assert.equal(await box.files.read('kept'), 'file')
  },
  'kill, and the error for a deleted sandbox': async () => {
    const handle = await box.commands.run('sleep 300', { background: true, timeoutMs: 0 })
    await box.kill()
    await rejected(handle.wait(), 'SandboxError')
    assert.equal(await box.isRunning(), false)
    assert.equal(await Sandbox.kill(box.sandboxId), false)
    await rejected(Sandbox.connect(box.sandboxId), 'NotFoundError')
    await rejected(Sandbox.create({ apiKey: `e2b_${'1'.repeat(40)}` }), 'AuthenticationError')
  },
}

for (const [name, check] of Object.entries(checks)) {
  let error = ''
  try {
    await check()
  } catch (e) {
    error = e?.stack ?? String(e)
  }
  process.stdout.write(JSON.stringify({ name, error }) + '\n')
}
await box?.kill().catch(() => {})
process.exit(0) // whatever is open still
