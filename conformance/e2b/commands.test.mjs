// Commands, as the SDK documents them.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, TimeoutError } from 'e2b'
import { failure, isAlive, sharedSandbox, test, until, within } from './sandbox.mjs'

const shared = sharedSandbox({ envs: { FROM_CREATE: 'create', BOTH: 'create' } })
const run = (cmd, opts) => shared.box.commands.run(cmd, opts)
const start = (cmd, opts) => run(cmd, { background: true, ...opts })
const noPid = 999_999

test('a result has stdout, stderr and the exit code', async () => {
  const { stdout, stderr, exitCode, error } = await run('echo out; echo err >&2')
  assert.deepEqual({ stdout, stderr, exitCode, error }, { stdout: 'out\n', stderr: 'err\n', exitCode: 0, error: undefined })
})

test('a command without output', async () => {
  const result = await run('true')
  assert.equal(result.stdout, '')
  assert.equal(result.stderr, '')
})

test('callbacks get the output as it comes', async () => {
  const seen = []
  const { stdout, stderr } = await run('echo one; sleep 0.5; echo two >&2; sleep 0.5; echo three', {
    onStdout: async (data) => { seen.push(['out', data]) },
    onStderr: (data) => { seen.push(['err', data]) },
  })
  assert.deepEqual(seen, [['out', 'one\n'], ['err', 'two\n'], ['out', 'three\n']])
  assert.equal(stdout, 'one\nthree\n')
  assert.equal(stderr, 'two\n')
})

test('the first output comes before the command ends', async () => {
  const { promise, resolve } = withResolvers()
  const handle = await start('echo ready; sleep 300', { onStdout: resolve })
  assert.equal(await within('output', promise), 'ready\n')
  assert.equal(handle.exitCode, undefined)
  await handle.kill()
})

test('much output, with characters of several bytes at any place', async () => {
  const pieces = []
  const { stdout } = await run(`python3 -c "print('x' + 'é€😀' * 300000, end='')"`, { onStdout: (data) => { pieces.push(data) } })
  assert.equal(stdout.length, 1 + 4 * 300_000)
  assert.ok(stdout === 'x' + 'é€😀'.repeat(300_000), 'the text is damaged')
  assert.equal(pieces.join(''), stdout)
})

test('output that is not text', async () => {
  const { stdout } = await run(`printf 'a\\377b'`)
  assert.equal(stdout, 'a\u{fffd}b')
})

test('a command runs as the default user in its home', async () => {
  const { stdout } = await run('whoami; id -u; id -g; echo $HOME $USER $LOGNAME; pwd')
  assert.equal(stdout, 'user\n1000\n1000\n/home/user user user\n/home/user\n')
})

test('a command runs in a login shell with a PATH', async () => {
  const { stdout } = await run('shopt -q login_shell && echo login; command -v ls; echo $PATH')
  const [login, ls, path] = stdout.split('\n')
  assert.equal(login, 'login')
  assert.match(ls, /^\/(usr\/)?bin\/ls$/)
  assert.ok(path.split(':').includes('/usr/local/bin'), path)
})

test('option user', async () => {
  const { stdout } = await run('whoami; id -u; echo $HOME $USER $LOGNAME; pwd', { user: 'root' })
  assert.equal(stdout, 'root\n0\n/root root root\n/root\n')
})

test('a set-user-ID program has the rights of its owner, as sudo needs it', async () => {
  await run('cp /usr/bin/id /tmp/whoami && chmod 4755 /tmp/whoami', { user: 'root' })
  assert.equal((await run('/tmp/whoami -u')).stdout, '0\n')
  assert.equal((await run('id -u')).stdout, '1000\n')
})

test('option envs', async () => {
  const { stdout } = await run('echo "$A|$B|$FROM_CREATE|$BOTH"', { envs: { A: 'a b "c" $d', B: 'ü\nnext', BOTH: 'command' } })
  assert.equal(stdout, 'a b "c" $d|ü\nnext|create|command\n')
})

test('variables of one command are not those of the next', async () => {
  await run('true', { envs: { ONCE: 'x' } })
  assert.equal((await run('echo "$ONCE|$BOTH"')).stdout, '|create\n')
})

test('option cwd', async () => {
  await run('mkdir -p "/tmp/with space" ~/below')
  assert.equal((await run('pwd', { cwd: '/tmp/with space' })).stdout, '/tmp/with space\n')
  assert.equal((await run('pwd', { cwd: 'below' })).stdout, '/home/user/below\n')
  assert.equal((await run('pwd', { cwd: '~/below' })).stdout, '/home/user/below\n')
  assert.equal((await run('pwd', { cwd: '~', user: 'root' })).stdout, '/root\n')
})

test('a cwd that is missing', async () => {
  await failure(run('pwd', { cwd: '/no/such/place' }), InvalidArgumentError, /cwd '\/no\/such\/place' does not exist/)
})

test('a user that is missing', async () => {
  await failure(run('pwd', { user: 'stranger' }), AuthenticationError, /invalid username: 'stranger'/)
})

test('an exit code that is not zero', async () => {
  const error = await failure(run('echo out; echo err >&2; exit 3'), CommandExitError)
  const { exitCode, stdout, stderr } = error
  assert.deepEqual({ exitCode, stdout, stderr }, { exitCode: 3, stdout: 'out\n', stderr: 'err\n' })
  assert.equal(error.error, 'exit status 3')
  assert.equal(error.message, 'exit status 3')
  assert.ok(error instanceof SandboxError)
})

test('a program that is missing', async () => {
  const error = await failure(run('no-such-program'), CommandExitError)
  assert.equal(error.exitCode, 127)
  assert.match(error.stderr, /no-such-program: command not found/)
})

test('a command that a signal ends', async () => {
  const error = await failure(run('kill -9 $$'), CommandExitError)
  assert.equal(error.exitCode, -1)
  assert.equal(error.error, 'signal: killed')
})

test('timeoutMs ends the command', async () => {
  const seen = []
  const running = run('echo started; exec sleep 4711.1', { timeoutMs: 2000, onStdout: (data) => { seen.push(data) } })
  await failure(running, TimeoutError, /deadline_exceeded/)
  assert.deepEqual(seen, ['started\n'])
  await until('the end of the command', async () => !(await isAlive(shared.box, '4711.1')))
})

test('timeoutMs of a command in the background', async () => {
  const handle = await start('exec sleep 4711.2', { timeoutMs: 1000 })
  await failure(within('the end', handle.wait()), TimeoutError)
  await until('the end of the command', async () => !(await isAlive(shared.box, '4711.2')))
})

test('timeoutMs 0 is no limit', async () => {
  assert.equal((await run('sleep 1; echo done', { timeoutMs: 0 })).stdout, 'done\n')
})

test('a command in the background', async () => {
  const handle = await start('sleep 1; echo out; echo err >&2')
  assert.ok(handle.pid > 0)
  assert.equal(handle.exitCode, undefined)
  const result = await handle.wait()
  assert.equal(result.exitCode, 0)
  assert.equal(handle.exitCode, 0)
  assert.equal(handle.stdout, 'out\n')
  assert.equal(handle.stderr, 'err\n')
  assert.deepEqual(await handle.wait(), result)
})

test('wait for a command that fails', async () => {
  const handle = await start('echo gone; exit 9')
  const error = await failure(handle.wait(), CommandExitError)
  assert.equal(error.exitCode, 9)
  assert.equal(handle.exitCode, 9)
  assert.equal(handle.error, 'exit status 9')
  assert.equal(handle.stdout, 'gone\n')
})

test('kill by the handle', async () => {
  const handle = await start('echo here; exec sleep 4711.3')
  assert.equal(await handle.kill(), true)
  const error = await failure(within('the end', handle.wait()), CommandExitError)
  assert.equal(error.exitCode, -1)
  assert.equal(error.error, 'signal: killed')
  assert.equal(await handle.kill(), false)
  assert.equal(await isAlive(shared.box, '4711.3'), false)
})

test('kill by the pid', async () => {
  const handle = await start('sleep 300')
  assert.equal(await shared.box.commands.kill(handle.pid), true)
  await failure(within('the end', handle.wait()), CommandExitError)
  assert.equal(await shared.box.commands.kill(handle.pid), false)
})

test('kill of an unknown pid', async () => {
  assert.equal(await shared.box.commands.kill(noPid), false)
})

test('list', async () => {
  const cmd = 'echo listed; sleep 300'
  const handle = await start(cmd, { envs: { LISTED: 'yes' }, cwd: '/tmp' })
  const plain = await start('sleep 300')
  const find = async (pid) => (await shared.box.commands.list()).find((p) => p.pid === pid)
  assert.deepEqual(await find(handle.pid), {
    pid: handle.pid, cmd: '/bin/bash', args: ['-l', '-c', cmd], envs: { LISTED: 'yes' }, cwd: '/tmp',
  })
  assert.deepEqual(await find(plain.pid), { pid: plain.pid, cmd: '/bin/bash', args: ['-l', '-c', 'sleep 300'], envs: {} })
  await handle.kill()
  await plain.kill()
  await until('nothing in the list', async () => !(await find(handle.pid)) && !(await find(plain.pid)))
})

test('connect follows a command from then on', async () => {
  const first = await start('read -r x; echo one $x; read -r x; echo two $x; exit 5', { stdin: true })
  await first.sendStdin('a\n')
  await until('the first line', () => first.stdout === 'one a\n')
  const seen = []
  const second = await shared.box.commands.connect(first.pid, { onStdout: (data) => { seen.push(data) } })
  assert.equal(second.pid, first.pid)
  await second.sendStdin('b\n')
  assert.equal((await failure(second.wait(), CommandExitError)).exitCode, 5)
  assert.equal((await failure(first.wait(), CommandExitError)).exitCode, 5)
  assert.equal(second.stdout, 'two b\n')
  assert.deepEqual(seen, ['two b\n'])
  assert.equal(first.stdout, 'one a\ntwo b\n')
})

test('connect to a command that has just ended', async () => {
  const handle = await start('echo over; exit 6')
  await failure(handle.wait(), CommandExitError)
  const late = await shared.box.commands.connect(handle.pid)
  assert.equal((await failure(late.wait(), CommandExitError)).exitCode, 6)
  assert.equal(late.stdout, '')
})

test('connect to an unknown pid', async () => {
  await failure(shared.box.commands.connect(noPid), NotFoundError, /process with pid 999999 not found/)
})

test('timeoutMs of connect', async () => {
  const handle = await start('exec sleep 300')
  const follower = await shared.box.commands.connect(handle.pid, { timeoutMs: 1000 })
  await failure(within('the end', follower.wait()), TimeoutError)
  assert.equal(await handle.kill(), true, 'only the following has ended')
})

test('disconnect leaves the command alone', async () => {
  let ticks = 0
  const handle = await start('while true; do echo tick; sleep 0.1; done', { onStdout: () => { ticks++ } })
  await until('a tick', () => ticks > 0)
  await handle.disconnect()
  const before = ticks
  const again = await shared.box.commands.connect(handle.pid)
  await until('ticks for the follower', () => again.stdout.length > 20)
  assert.equal(ticks, before, 'the first handle continues')
  assert.equal(await again.kill(), true)
  assert.equal((await failure(again.wait(), CommandExitError)).exitCode, -1)
})

test('a command outlives its client', async () => {
  const script = `
    import { Sandbox } from 'e2b'
    const box = await Sandbox.connect(process.argv[1])
    await box.commands.run('while true; do echo on; sleep 0.2; done # orphan', {
      background: true, timeoutMs: 0, onStdout: () => process.kill(process.pid, 'SIGKILL'),
    })
    await new Promise(() => setInterval(() => {}, 1000))`
  const signal = await new Promise((resolve) => {
    const args = ['--input-type=module', '-e', script, '--', shared.box.sandboxId]
    execFile(process.execPath, args, { cwd: import.meta.dirname, timeout: 30_000, killSignal: 'SIGTERM' }, (error, _, stderr) => {
      resolve(error?.signal ?? `it ended by itself: ${stderr}`)
    })
  })
  assert.equal(signal, 'SIGKILL')
  const left = (await shared.box.commands.list()).find((p) => p.args[2].includes('# orphan'))
  assert.ok(left, 'the command is gone')
  const handle = await shared.box.commands.connect(left.pid)
  await until('output', () => handle.stdout.includes('on\non\n'))
  assert.equal(await handle.kill(), true)
  await failure(handle.wait(), CommandExitError)
})

test('stdin of a handle', async () => {
  const handle = await start('cat; echo end', { stdin: true })
  await handle.sendStdin('text äö\n')
  await handle.sendStdin(new TextEncoder().encode('bytes\n'))
  await until('the echo', () => handle.stdout === 'text äö\nbytes\n')
  await handle.closeStdin()
  assert.equal((await within('the end', handle.wait())).stdout, 'text äö\nbytes\nend\n')
})

test('stdin by the pid', async () => {
  const { commands } = shared.box
  const handle = await start('wc -c', { stdin: true })
  const block = new Uint8Array(100_000).fill(120)
  for (let i = 0; i < 10; i++) await commands.sendStdin(handle.pid, block)
  await commands.closeStdin(handle.pid)
  assert.equal((await within('the end', handle.wait())).stdout, '1000000\n')
})

test('stdin of a handle made by connect', async () => {
  const handle = await start('cat', { stdin: true })
  const other = await shared.box.commands.connect(handle.pid)
  await other.sendStdin('by another\n')
  await other.closeStdin()
  assert.equal((await within('the end', handle.wait())).stdout, 'by another\n')
})

test('without stdin the input is empty', async () => {
  assert.equal((await run('cat; echo end', { timeoutMs: 10_000 })).stdout, 'end\n')
})

test('input for a command without stdin', async () => {
  const handle = await start('exec sleep 300')
  await failure(handle.sendStdin('x'), SandboxError)
  await handle.kill()
})

test('input for an unknown pid', async () => {
  await failure(shared.box.commands.sendStdin(noPid, 'x'), NotFoundError)
  await failure(shared.box.commands.closeStdin(noPid), NotFoundError)
})

test('many commands at once', async () => {
  const numbers = Array.from({ length: 20 }, (_, i) => i)
  const results = await Promise.all(numbers.map((i) => run(`sleep 0.3; echo ${i}`)))
  assert.deepEqual(results.map((r) => r.stdout), numbers.map((i) => `${i}\n`))
})

test('a long command line and many variables', async () => {
  const word = 'y'.repeat(100_000)
  const envs = Object.fromEntries(Array.from({ length: 200 }, (_, i) => [`MANY_${i}`, String(i)]))
  const { stdout } = await run(`x=${word}; echo \${#x}; env | grep -c '^MANY_'`, { envs })
  assert.equal(stdout, '100000\n200\n')
})

test('another client of the same sandbox', async () => {
  const other = await Sandbox.connect(shared.box.sandboxId)
  assert.equal((await other.commands.run('echo $FROM_CREATE')).stdout, 'create\n')
})

// As Promise.withResolvers, which Node 20 does not have.
function withResolvers() {
  let resolve
  const promise = new Promise((r) => { resolve = r })
  return { promise, resolve }
}
