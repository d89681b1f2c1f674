// What can go wrong, and the class of error that the SDK makes of it. Nothing hangs.
import assert from 'node:assert/strict'
import {
  AuthenticationError, CommandExitError, FileNotFoundError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError,
  SandboxNotFoundError, Template, TemplateError, TimeoutError,
} from 'e2b'
import { failure, sharedSandbox, sleep, test, until, within } from './sandbox.mjs'

const shared = sharedSandbox()
const nobody = 'i0000000000000000000'
const wrongKey = { apiKey: `e2b_${'1'.repeat(40)}` }
const rule = (host, headers) => ({ rules: { [host]: [{ transform: { headers } }] } })
const silent = { onData: () => {}, cols: 80, rows: 24 }

// Each: what is done, the class of its error, and what the text has.
const table = {
  'a wrong key': [() => Sandbox.create(wrongKey), AuthenticationError, /401|valid/],
  'a wrong key, for a list': [() => Sandbox.list(wrongKey).nextItems(), AuthenticationError],
  'a wrong key, for a template': [() => Template.exists('base', wrongKey), AuthenticationError],
  'no such template': [() => Sandbox.create('no-such'), SandboxError, /404.*no-such/],
  'no such tag': [() => Sandbox.create('base:v7'), SandboxError, /404/],
  'no such snapshot': [() => Sandbox.create('snapaaaaaaaaaaaaaaaa'), SandboxError, /404/],
  'no such sandbox, connect': [() => Sandbox.connect(nobody), SandboxNotFoundError],
  'no such sandbox, info': [() => Sandbox.getInfo(nobody), SandboxNotFoundError],
  'no such sandbox, pause': [() => Sandbox.pause(nobody), SandboxNotFoundError],
  'no such sandbox, timeout': [() => Sandbox.setTimeout(nobody, 1000), SandboxNotFoundError],
  'no such sandbox, metrics': [() => Sandbox.getMetrics(nobody), SandboxNotFoundError],
  'no such sandbox, network': [() => Sandbox.updateNetwork(nobody, {}), SandboxNotFoundError],
  'no such sandbox, snapshot': [() => Sandbox.createSnapshot(nobody), SandboxNotFoundError],
  'no such sandbox, fork': [() => Sandbox.fork(nobody), SandboxNotFoundError],
  'a name that is none': [() => Sandbox.getInfo('no name!'), SandboxNotFoundError],
  'a timeout below nothing': [() => Sandbox.create('base', { timeoutMs: -1000 }), SandboxError, /400.*timeout/],
  'metadata of the server': [() => Sandbox.create('base', { metadata: { 'sandpit.x': 'y' } }), SandboxError, /400/],
  'an address that is none': [() => Sandbox.create('base', { network: { denyOut: ['300.0.0.1'] } }), SandboxError, /400/],
  'what is not there': [() => Sandbox.create('base', { network: { egressProxy: { address: 'example.com:1080' } } }), SandboxError, /501/],
  'a secret of a vault': [() => Sandbox.create('base', { network: rule('example.com', { a: '${e2b.secrets.b}' }) }), SandboxError, /501.*vault/],
  'a header of the connection': [() => Sandbox.create('base', { network: rule('example.com', { connection: 'close' }) }), SandboxError, /400.*connection/],
  'a header for an address': [() => Sandbox.create('base', { network: rule('192.0.2.1', { a: 'b' }) }), SandboxError, /400.*name/],
  'a state that is none': [() => Sandbox.list({ query: { state: ['lost'] } }).nextItems(), SandboxError, /400/],
  'a page that is none': [() => Sandbox.list({ nextToken: 'x' }).nextItems(), SandboxError, /400/],
  'a template to tag that is none': [() => Template.assignTags('no-such:v1', 'v2'), TemplateError, /404|501/],

  'read what is not there': [(box) => box.files.read('/no/such'), FileNotFoundError],
  'read a directory': [(box) => box.files.read('/etc'), InvalidArgumentError],
  'list what is not there': [(box) => box.files.list('/no/such'), FileNotFoundError],
  'list a file': [(box) => box.files.list('/etc/passwd'), InvalidArgumentError],
  'move what is not there': [(box) => box.files.rename('/no/such', '/tmp/x'), FileNotFoundError],
  'info of what is not there': [(box) => box.files.getInfo('/no/such'), FileNotFoundError],
  'watch what is not there': [(box) => box.files.watchDir('/no/such', () => {}), FileNotFoundError],
  'watch a file': [(box) => box.files.watchDir('/etc/passwd', () => {}), InvalidArgumentError],
  'write to a directory': [(box) => box.files.write('/tmp', 'x'), InvalidArgumentError],
  'one file twice': [(box) => box.files.writeFiles([{ path: '/tmp/a', data: 'a' }, { path: '/tmp/a', data: 'b' }]), InvalidArgumentError, /twice/],
  'one of several files': [(box) => box.files.writeFiles([{ path: '/tmp/a', data: 'a' }, { path: '/etc/passwd/x', data: 'b' }]), InvalidArgumentError],
  'a name that is too long': [(box) => box.files.write(`/tmp/${'n'.repeat(300)}`, 'x'), InvalidArgumentError],
  'a path that is too long': [(box) => box.files.read(`/tmp/${'n/'.repeat(5000)}x`), InvalidArgumentError],
  'a path with a zero byte': [(box) => box.files.read('/tmp/a\0b'), InvalidArgumentError],
  'a link to itself': [async (box) => { await box.commands.run('ln -sfn /tmp/loop /tmp/loop'); await box.files.read('/tmp/loop') }, InvalidArgumentError],
  'a device': [(box) => box.files.read('/dev/full'), InvalidArgumentError],
  'a pipe that nobody writes to': [async (box) => { await box.commands.run('mkfifo -m 666 /tmp/pipe'); await box.files.read('/tmp/pipe') }, InvalidArgumentError],
  'a directory below a file': [(box) => box.files.makeDir('/etc/passwd/x'), InvalidArgumentError],
  'a directory in place of a file': [(box) => box.files.makeDir('/etc/passwd'), InvalidArgumentError],
  'a directory into itself': [async (box) => { await box.files.makeDir('/tmp/in'); await box.files.rename('/tmp/in', '/tmp/in/itself') }, InvalidArgumentError],
  'a file in place of a directory': [async (box) => { await box.files.write('/tmp/f', ''); await box.files.rename('/tmp/f', '/usr') }, InvalidArgumentError],
  'a list of no depth': [(box) => box.files.list('/tmp', { depth: 0 }), InvalidArgumentError],
  'write below a file': [(box) => box.files.write('/etc/passwd/x', 'y'), InvalidArgumentError],
  'files of an unknown user': [(box) => box.files.read('/etc/passwd', { user: 'who' }), AuthenticationError],
  'a file for an unknown user': [(box) => box.files.write('/tmp/x', 'y', { user: 'who' }), AuthenticationError],
  'a list for an unknown user': [(box) => box.files.list('~', { user: 'who' }), AuthenticationError],
  'a command of an unknown user': [(box) => box.commands.run('true', { user: 'who' }), AuthenticationError, /invalid username: 'who'/],
  'a terminal of an unknown user': [(box) => box.pty.create({ ...silent, user: 'who' }), AuthenticationError],
  'a command in no directory': [(box) => box.commands.run('true', { cwd: '/no/such' }), InvalidArgumentError],
  'a command in a file': [(box) => box.commands.run('true', { cwd: '/etc/passwd' }), InvalidArgumentError],
  'a command with a zero byte': [(box) => box.commands.run('echo a\0b'), InvalidArgumentError],
  'a command of megabytes': [(box) => box.commands.run(`true ${'x'.repeat(3 << 20)}`), InvalidArgumentError],
  'a variable that is none': [(box) => box.commands.run('true', { envs: { 'A=B': 'x' } }), InvalidArgumentError],
  'a command that fails': [(box) => box.commands.run('exit 7'), CommandExitError, /7/],
  'a command that is not there': [(box) => box.commands.run('no-such-command'), CommandExitError, /127/],
  'a command that takes too long': [(box) => box.commands.run('sleep 100', { timeoutMs: 500 }), TimeoutError],
  'a terminal that takes too long': [async (box) => (await box.pty.create({ ...silent, timeoutMs: 500 })).wait(), TimeoutError],
  'input to no process': [(box) => box.commands.sendStdin(999_999, 'x'), NotFoundError],
  'connect to no process': [(box) => box.commands.connect(999_999), NotFoundError],
}

test('each failure has its class', async () => {
  const wrong = []
  for (const [name, [act, kind, text]] of Object.entries(table)) {
    try {
      await failure(within(name, act(shared.box)), kind, text)
    } catch (e) {
      wrong.push(`${name}: ${e.message}`)
    }
  }
  assert.deepEqual(wrong, [])
  assert.equal((await shared.box.commands.run('echo still here')).stdout, 'still here\n')
  assert.equal(await Sandbox.kill(nobody), false)
  assert.equal(await shared.box.commands.kill(999_999), false)
  assert.equal(await Template.exists('no-such'), false)
})

test('what a client gives up ends at once, and leaves nothing half done', async () => {
  const { box } = shared
  await box.commands.run('head -c 100M /dev/urandom > /tmp/much')
  const given = {
    'a command': [() => box.commands.run('sleep 600', { signal: AbortSignal.timeout(500) }), TimeoutError],
    'a terminal': [async () => (await box.pty.create({ ...silent, signal: AbortSignal.timeout(500) })).wait(), TimeoutError],
    'a read': [() => box.files.read('/tmp/much', { format: 'bytes', signal: AbortSignal.timeout(30) }), DOMException],
    'a write': [() => box.files.write('/tmp/given-up', new Blob([new Uint8Array(300 << 20)]), { signal: AbortSignal.timeout(50) }), DOMException],
    'a list of sandboxes': [() => Sandbox.list({ signal: AbortSignal.timeout(1) }).nextItems(), DOMException],
    'what was given up before': [() => Sandbox.create({ signal: AbortSignal.abort() }), DOMException],
    'a question that may take no time': [() => box.files.list('/', { requestTimeoutMs: 1 }), TimeoutError],
  }
  for (const [name, [act, kind]] of Object.entries(given)) {
    const error = await within(name, act().then(() => undefined, (e) => e))
    assert.ok(error instanceof kind, `${name}: ${error?.stack}`)
  }
  let exit
  await box.files.watchDir('/tmp', () => {}, { signal: AbortSignal.timeout(300), onExit: (error) => { exit = { error } } })
  await until('the end of a watch', () => exit)
  assert.equal(await box.files.exists('/tmp/given-up'), false)
  assert.equal((await box.commands.run('echo still here')).stdout, 'still here\n')
})

test('a sandbox whose time is over ends what goes on', async () => {
  const box = await Sandbox.create('base', { timeoutMs: 60_000 })
  const handle = await box.commands.run('echo up; sleep 300', { background: true, timeoutMs: 0 })
  await until('output', () => handle.stdout === 'up\n')
  await box.setTimeout(500)
  await failure(within('the command', handle.wait(), 30_000), TimeoutError, /killed or reached its end of life/)
  await failure(within('a file', box.files.read('/etc/hostname')), TimeoutError)
  await failure(within('a command', box.commands.run('true')), SandboxNotFoundError)
})

test('files that come and go while their sandbox is killed', async () => {
  const box = await Sandbox.create()
  // What can be packed well would all be under way already.
  await box.commands.run('head -c 200M /dev/urandom > /tmp/large')
  const stream = await box.files.read('/tmp/large', { format: 'stream' })
  const reading = (async () => {
    let n = 0
    for await (const part of stream) n += part.length
    return n
  })()
  const writing = box.files.write('/tmp/written', new Blob([new Uint8Array(200 << 20)]))
  const ended = Promise.allSettled([reading, writing])
  await sleep(500)
  assert.equal(await box.kill(), true)
  const results = await within('both', ended)
  assert.deepEqual(results.map((r) => r.status), ['rejected', 'rejected'])
})
