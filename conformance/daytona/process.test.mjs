// Commands, code, sessions and terminals, as the SDK documents them.
import assert from 'node:assert/strict'
import { create, failure, sharedSandbox, sleep, test, unique, until, within } from './sandbox.mjs'

const shared = sharedSandbox({ envVars: { FROM_CREATE: 'create', BOTH: 'create' } })
const run = (...args) => shared.box.process.executeCommand(...args)

test('a result has the output and the exit code', async () => {
  const { exitCode, result, artifacts } = await run('echo out; echo err >&2')
  assert.equal(exitCode, 0)
  assert.deepEqual(result.split('\n').sort(), ['', 'err', 'out'])
  assert.equal(artifacts.stdout, result)
})

test('an exit code that is not zero', async () => {
  assert.deepEqual([(await run('echo x; exit 3')).exitCode, (await run('exit 3')).result], [3, ''])
  const missing = await run('no-such-program')
  assert.equal(missing.exitCode, 127)
  assert.match(missing.result, /no-such-program.*not found/)
})

test('a shell: pipes, variables, several lines, quotes', async () => {
  assert.equal((await run('printf "b\\na\\n" | sort | tr -d "\\n"')).result, 'ab')
  assert.equal((await run('x=1\nif [ $x = 1 ]; then\n  echo "it\'s one"\nfi')).result, "it's one\n")
  assert.equal((await run("cat <<'END'\n$x é€😀\nEND")).result, '$x é€😀\n')
  assert.equal((await run('[[ abc == a* ]] && echo {1..3}')).result, '1 2 3\n')
})

test('working directory and variables', async () => {
  assert.equal((await run('pwd', '/tmp')).result, '/tmp\n')
  assert.equal((await run('mkdir -p below && pwd')).result, `${await shared.box.getWorkDir()}\n`)
  assert.equal((await run('pwd', 'below')).result, `${await shared.box.getWorkDir()}/below\n`)
  await failure(run('pwd', '/missing'), 'DaytonaValidationError', 400)
  assert.equal((await run('echo "$A|$FROM_CREATE|$BOTH"', undefined, { A: 'a b "c" $d', BOTH: 'command' })).result, 'a b "c" $d|create|command\n')
  assert.equal((await run('echo "$A|$BOTH"')).result, '|create\n')
})

test('much output', async () => {
  const { result } = await run(`python3 -c "print('é' * 1000000, end='')"`)
  assert.ok(result === 'é'.repeat(1_000_000), `${result.length} characters`)
})

test('a timeout', async () => {
  const error = await failure(run('echo begun; sleep 1234', undefined, undefined, 1), 'DaytonaProcessExecutionTimeoutError', 408)
  assert.equal(error.code, 'PROCESS_EXECUTION_TIMEOUT')
  await until('the command has ended', async () => (await run('ps -eo args | grep "[s]leep 1234" | wc -l')).result.trim() === '0')
})

test('an empty command', async () => {
  await failure(run(''), 'DaytonaValidationError', 400)
})

test('Python code, with arguments and variables', async () => {
  const code = 'import os, sys\nprint(sys.argv[1:], os.environ["X"])\nprint("é")'
  const { exitCode, result } = await shared.box.process.codeRun(code, { argv: ['a b', 'c'], env: { X: '1' } })
  assert.deepEqual([exitCode, result.trim()], [0, "['a b', 'c'] 1\né"])
  const wrong = await shared.box.process.codeRun('raise ValueError("no")')
  assert.equal(wrong.exitCode, 1)
  assert.match(wrong.result, /ValueError: no/)
  await failure(shared.box.process.codeRun('import time; time.sleep(1000)', undefined, 1), 'DaytonaProcessExecutionTimeoutError', 408)
})

test('charts of Python code', async (t) => {
  const find = "from importlib.util import find_spec; [find_spec(m).name for m in ('matplotlib', 'IPython')]"
  if ((await run(`python3 -c "${find}"`)).exitCode !== 0) return t.skip('no matplotlib')
  const code = "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.title('Sizes')\nplt.show()\nprint('drawn')"
  const { exitCode, result, artifacts } = await shared.box.process.codeRun(code)
  assert.deepEqual([exitCode, result.trim()], [0, 'drawn'])
  const [chart, ...others] = artifacts.charts
  assert.equal(others.length, 0)
  assert.deepEqual([chart.type, chart.title], ['bar', 'Sizes'])
  assert.deepEqual(chart.elements.map(({ label, value }) => [label, Number(value)]), [['a', 1], ['b', 2]])
  assert.equal(Buffer.from(chart.png, 'base64').subarray(1, 4).toString(), 'PNG')
}, 120_000)

test('JavaScript and TypeScript code', async (t) => {
  if ((await run('command -v node')).exitCode !== 0) return t.skip('no node')
  const js = await create({ language: 'javascript' })
  assert.deepEqual((await js.process.codeRun('console.log([1, 2].map((n) => n * 2).join())')).result.trim(), '2,4')
  const ts = await create({ language: 'typescript' })
  const { exitCode, result } = await ts.process.codeRun('const n: number = 40\nconsole.log(n + 2)')
  assert.deepEqual([exitCode, result.trim()], [0, '42'])
  for (const box of [js, ts]) {
    assert.equal((await box.process.codeRun('console.log(process.argv[2], process.env.A)', { argv: ['a b'], env: { A: 'c' } })).result, 'a b c\n')
  }
}, 180_000)

test('a session keeps its state', async () => {
  const { process } = shared.box
  await process.createSession('state')
  assert.equal((await process.executeSessionCommand('state', { command: 'cd /tmp; export KEPT=yes' })).exitCode, 0)
  const next = await process.executeSessionCommand('state', { command: 'pwd; echo $KEPT; echo err >&2' })
  assert.equal(next.stdout, '/tmp\nyes\n')
  assert.equal(next.stderr, 'err\n')
  assert.equal((await process.executeSessionCommand('state', { command: 'false' })).exitCode, 1)
  const { sessionId, commands } = await process.getSession('state')
  assert.equal(sessionId, 'state')
  assert.deepEqual(commands.map((c) => c.exitCode), [0, 0, 1])
  assert.equal((await process.getSessionCommand('state', next.cmdId)).exitCode, 0)
  assert.ok((await process.listSessions()).some((s) => s.sessionId === 'state'))
  await failure(process.createSession('state'), 'DaytonaConflictError', 409)
  await process.deleteSession('state')
  await failure(process.getSession('state'), 'DaytonaNotFoundError', 404)
  await failure(process.deleteSession('state'), 'DaytonaNotFoundError', 404)
  await failure(process.executeSessionCommand('state', { command: 'true' }), 'DaytonaNotFoundError', 404)
})

test('a here-document in a session', async () => {
  const { process } = shared.box
  await process.createSession('here')
  const { stdout, exitCode } = await within('output', process.executeSessionCommand('here', { command: "cat <<'END'\none\ntwo\nEND" }))
  assert.deepEqual([stdout, exitCode], ['one\ntwo\n', 0])
  await process.deleteSession('here')
})

test('an asynchronous command: state, logs, end', async () => {
  const { process } = shared.box
  await process.createSession('async')
  const { cmdId, exitCode } = await process.executeSessionCommand('async', { command: 'echo one; echo two >&2; sleep 1; echo three; exit 4', runAsync: true })
  assert.ok(cmdId)
  assert.equal(exitCode, undefined)
  const running = await process.getSessionCommand('async', cmdId)
  assert.equal(running.id, cmdId)
  assert.match(running.command, /echo one/)
  assert.equal(running.exitCode, undefined)
  await until('the first output', async () => (await process.getSessionCommandLogs('async', cmdId)).stdout === 'one\n')
  await until('the end', async () => (await process.getSessionCommand('async', cmdId)).exitCode === 4)
  const logs = await process.getSessionCommandLogs('async', cmdId)
  assert.deepEqual([logs.stdout, logs.stderr], ['one\nthree\n', 'two\n'])
  await process.deleteSession('async')
})

test('logs are followed', async () => {
  const { process } = shared.box
  await process.createSession('follow')
  const { cmdId } = await process.executeSessionCommand('follow', {
    command: 'echo before; sleep 0.5; echo problem >&2; sleep 0.5; echo é€😀 after', runAsync: true,
  })
  const seen = { out: '', err: '' }
  await within('the end of the logs', process.getSessionCommandLogs('follow', cmdId, (s) => { seen.out += s }, (s) => { seen.err += s }))
  assert.deepEqual(seen, { out: 'before\né€😀 after\n', err: 'problem\n' })
  const again = { out: '', err: '' }
  await within('logs of a command that has ended', process.getSessionCommandLogs('follow', cmdId, (s) => { again.out += s }, (s) => { again.err += s }))
  assert.deepEqual(again, seen)
  await process.deleteSession('follow')
})

test('input of an asynchronous command', async () => {
  const { process } = shared.box
  await process.createSession('input')
  const { cmdId } = await process.executeSessionCommand('input', { command: 'read a; echo "got $a"; read b; echo "and $b"', runAsync: true })
  await process.sendSessionCommandInput('input', cmdId, 'one\n')
  await process.sendSessionCommandInput('input', cmdId, 'two\n')
  await until('the end', async () => (await process.getSessionCommand('input', cmdId)).exitCode === 0)
  const { stdout } = await process.getSessionCommandLogs('input', cmdId)
  assert.match(stdout, /got one\n[^]*and two\n/)
  await failure(process.sendSessionCommandInput('input', cmdId, 'late\n'), 'DaytonaCommandAlreadyCompletedError', 410)
  const ask = { command: `python3 -c "print('got', input('sure? '))"`, runAsync: true, suppressInputEcho: true }
  const asked = await process.executeSessionCommand('input', ask)
  await until('the question', async () => (await process.getSessionCommandLogs('input', asked.cmdId)).output.includes('sure?'))
  await process.sendSessionCommandInput('input', asked.cmdId, 'y')
  await until('the answer', async () => (await process.getSessionCommandLogs('input', asked.cmdId)).stdout === 'sure? got y\n')
  await process.deleteSession('input')
})

test('a session ends its programs', async () => {
  const { process } = shared.box
  await process.createSession('programs')
  await process.executeSessionCommand('programs', { command: 'sleep 12345', runAsync: true })
  const count = async () => Number((await run('ps -eo args | grep -c "[s]leep 12345"')).result)
  await until('the program runs', async () => (await count()) > 0)
  await process.deleteSession('programs')
  await until('the program has ended', async () => (await count()) === 0)
})

test('the session of the entrypoint', async () => {
  const { sessionId, commands } = await shared.box.process.getEntrypointSession()
  assert.equal(sessionId, 'entrypoint')
  assert.ok(Array.isArray(commands))
  assert.equal((await shared.box.process.getEntrypointLogs()).output, '')
  await within('the end of its log', shared.box.process.getEntrypointLogs(() => {}, () => {}))
})

// openPty returns a terminal and what it has written so far.
async function openPty(options = {}) {
  const decoder = new TextDecoder()
  const seen = { text: '' }
  const pty = await shared.box.process.createPty({ id: unique('pty'), onData: (d) => { seen.text += decoder.decode(d, { stream: true }) }, ...options })
  return { pty, seen }
}

test('a terminal: size, variables, input, exit code', async () => {
  const { pty, seen } = await openPty({ cols: 101, rows: 31, cwd: '/tmp', envs: { MARK: 'é b' } })
  assert.ok(pty.isConnected())
  await pty.sendInput('stty size; echo "<$MARK>"; pwd; tty\n')
  await until(() => seen.text, () => /31 101[^]*<é b>[^]*\/tmp\r?\n[^]*\/dev\/pts/.test(seen.text))
  const info = await pty.resize(120, 40)
  assert.deepEqual([info.cols, info.rows, info.active], [120, 40, true])
  await pty.sendInput('stty size\n')
  await until(() => seen.text, () => /40 120/.test(seen.text))
  await pty.sendInput('exit 7\n')
  const { exitCode } = await within('the end', pty.wait())
  assert.equal(exitCode, 7)
  await pty.disconnect()
})

test('terminals: list, information, second client, interrupt, kill', async () => {
  const { process } = shared.box
  const { pty, seen } = await openPty()
  const info = await process.getPtySessionInfo(pty.sessionId)
  assert.deepEqual([info.id, info.cols, info.rows, info.active], [pty.sessionId, 80, 24, true])
  assert.ok((await process.listPtySessions()).some((p) => p.id === pty.sessionId))
  const decoder = new TextDecoder()
  let second = ''
  const other = await process.connectPty(pty.sessionId, { onData: (d) => { second += decoder.decode(d, { stream: true }) } })
  await pty.sendInput('echo sho""wn\n')
  await until(() => `${seen.text} / ${second}`, () => seen.text.includes('shown') && second.includes('shown'))
  await other.disconnect()
  await pty.sendInput('sleep 1000\n')
  await sleep(300)
  await pty.sendInput(new Uint8Array([3]))
  await pty.sendInput('echo c""ut\n')
  await until(() => seen.text, () => seen.text.includes('cut'))
  await failure(process.createPty({ id: pty.sessionId, onData() {} }), 'DaytonaConnectionError', undefined, /already exists/)
  await failure(process.connectPty('missing', { onData() {} }), 'DaytonaConnectionError', undefined, /not found/)
  await failure(process.resizePtySession(pty.sessionId, 0, 0), 'DaytonaValidationError', 400)
  assert.equal(info.cwd, await shared.box.getWorkDir())
  await pty.kill()
  assert.equal((await within('the end', pty.wait())).exitCode, 137)
  await failure(process.getPtySessionInfo(pty.sessionId), 'DaytonaNotFoundError', 404)
})

test('the interpreter keeps variables, in each context its own', async () => {
  const { codeInterpreter } = shared.box
  let out = ''
  assert.equal((await codeInterpreter.runCode('x = 41\nprint("set")', { onStdout: (m) => { out += m.output } })).error, undefined)
  assert.equal(out, 'set\n')
  assert.equal((await codeInterpreter.runCode('print(x + 1)')).stdout, '42\n')
  await shared.box.fs.createFolder('inside', '755')
  const context = await codeInterpreter.createContext('inside')
  assert.deepEqual([context.cwd, context.language, context.active], [`${await shared.box.getWorkDir()}/inside`, 'python', true])
  const { error } = await codeInterpreter.runCode('print(x)', { context })
  assert.equal(error.name, 'NameError')
  assert.ok((await codeInterpreter.listContexts()).some((c) => c.id === context.id))
  await codeInterpreter.deleteContext(context)
  await failure(codeInterpreter.deleteContext(context), 'DaytonaNotFoundError', 404)
  await failure(codeInterpreter.runCode('1', { context }), 'DaytonaConnectionError', undefined, /not found/)
  await failure(codeInterpreter.runCode('import time; time.sleep(60)', { timeout: 1 }), 'DaytonaTimeoutError')
  assert.equal((await codeInterpreter.runCode('print(x)')).stdout, '41\n')
}, 120_000)
