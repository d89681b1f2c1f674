// What a client sees when its sandbox ends under it.
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { AuthenticationError, Sandbox, SandboxNotFoundError, TimeoutError } from 'e2b'
import { failure, test, until, within } from './sandbox.mjs'

const killed = /The sandbox was killed or reached its end of life/
const made = []

async function create() {
  const box = await Sandbox.create()
  made.push(box)
  return box
}

after(async () => {
  for (const box of made) await box.kill()
})

test('isRunning, before and after kill', async () => {
  const box = await create()
  assert.equal(await box.isRunning(), true)
  assert.equal(await box.kill(), true)
  assert.equal(await box.isRunning(), false)
  assert.equal(await box.kill(), false)
})

test('connect finds the same sandbox', async () => {
  const box = await create()
  await box.files.write('mark', 'same')
  const other = await Sandbox.connect(box.sandboxId)
  assert.equal(other.sandboxId, box.sandboxId)
  assert.equal(await other.files.read('mark'), 'same')
  assert.equal((await box.getInfo()).sandboxId, box.sandboxId)
  await box.setTimeout(60_000)
})

test('a sandbox is not another', async () => {
  const [one, two] = [await create(), await create()]
  await one.files.write('/tmp/only-here', 'x')
  assert.equal(await two.files.exists('/tmp/only-here'), false)
})

test('a command ends with its sandbox', async () => {
  const box = await create()
  const handle = await box.commands.run('echo up; sleep 300', { background: true })
  await until('output', () => handle.stdout === 'up\n')
  assert.equal(await box.kill(), true)
  await failure(within('the error', handle.wait()), TimeoutError, killed)
})

test('a command that puts out all the time ends with its sandbox', async () => {
  const box = await create()
  const handle = await box.commands.run('yes', { background: true })
  await until('output', () => handle.stdout.length > 100_000)
  assert.equal(await box.kill(), true)
  await failure(within('the error', handle.wait()), TimeoutError, killed)
})

test('a terminal ends with its sandbox', async () => {
  const box = await create()
  const handle = await box.pty.create({ cols: 80, rows: 24, onData: () => {} })
  assert.equal(await box.kill(), true)
  await failure(within('the error', handle.wait()), TimeoutError, killed)
})

test('a watch ends with its sandbox', async () => {
  const box = await create()
  let exit
  await box.files.watchDir('/home/user', () => {}, { onExit: (error) => { exit = { error } } })
  assert.equal(await box.kill(), true)
  await until('onExit', () => exit)
  await failure(Promise.reject(exit.error), TimeoutError, killed)
})

test('calls to a sandbox that is gone', async () => {
  const box = await create()
  assert.equal(await box.kill(), true)
  await failure(box.commands.run('true'), SandboxNotFoundError)
  await failure(box.commands.list(), TimeoutError)
  await failure(box.pty.create({ cols: 80, rows: 24, onData: () => {} }), SandboxNotFoundError)
  await failure(box.files.watchDir('/tmp', () => {}), SandboxNotFoundError)
  await failure(box.files.list('/tmp'), TimeoutError)
  await failure(box.files.read('/etc/hostname'), TimeoutError)
  await failure(box.files.write('/tmp/x', 'y'), TimeoutError)
  await failure(Sandbox.connect(box.sandboxId), SandboxNotFoundError)
})

test('a wrong token opens nothing', async () => {
  const box = await create()
  const opts = { sandboxId: box.sandboxId, envdVersion: '0.6.13', envdAccessToken: 'wrong' }
  const thief = new Sandbox(opts)
  await failure(thief.commands.run('true'), AuthenticationError)
  await failure(thief.commands.list(), AuthenticationError)
  await failure(thief.files.list('/'), AuthenticationError)
  await failure(thief.files.watchDir('/', () => {}), AuthenticationError)
  await failure(thief.files.read('/etc/passwd'), AuthenticationError)
  await failure(thief.files.write('/tmp/x', 'y'), AuthenticationError)
  const nobody = new Sandbox({ ...opts, envdAccessToken: undefined })
  await failure(nobody.commands.run('true'), AuthenticationError)
  await failure(nobody.files.read('/etc/passwd'), AuthenticationError)
  assert.equal(await nobody.isRunning(), true, 'health is for everybody')
})
