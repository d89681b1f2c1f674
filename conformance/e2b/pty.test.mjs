// Terminals, as the SDK documents them.
import assert from 'node:assert/strict'
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { failure, isAlive, sharedSandbox, test, until, within } from './sandbox.mjs'

const shared = sharedSandbox()
const noPid = 999_999
const bytes = (text) => new TextEncoder().encode(text)

// A terminal with all that it has shown. What a test waits for is computed by
// the shell, so that the echo of the input does not pass for it.
async function open(opts) {
  const decoder = new TextDecoder()
  const terminal = { text: '', chunks: [] }
  terminal.onData = (data) => {
    terminal.chunks.push(data)
    terminal.text += decoder.decode(data, { stream: true })
  }
  terminal.handle = await shared.box.pty.create({ cols: 80, rows: 24, onData: terminal.onData, ...opts })
  terminal.pid = terminal.handle.pid
  terminal.type = (text) => shared.box.pty.sendInput(terminal.pid, bytes(text))
  terminal.shows = (text) => until(
    () => `${JSON.stringify(text)} in ${JSON.stringify(terminal.text.slice(-500))}`, () => terminal.text.includes(text))
  return terminal
}

async function close(terminal) {
  await terminal.handle.kill()
  await terminal.handle.wait().catch(() => {}) // it was killed
}

test('input and output', async () => {
  const terminal = await open()
  await terminal.type('echo $((40+2))-sum\n')
  await terminal.shows('42-sum')
  assert.ok(terminal.chunks[0] instanceof Uint8Array)
  await close(terminal)
})

test('it is a terminal, and the shell interactive and a login shell', async () => {
  const terminal = await open()
  await terminal.type('tty; test -t 0 -a -t 1 -a -t 2 && echo t""ty-yes; shopt -q login_shell && echo $-lo""gin\n')
  await terminal.shows('/dev/pts/')
  await terminal.shows('tty-yes')
  await until('an interactive login shell', () => /\w*i\w*login/.test(terminal.text))
  await close(terminal)
})

test('the defaults', async () => {
  const terminal = await open()
  await terminal.type('echo "<$TERM|$LANG|$LC_ALL|$(whoami)|$HOME|$(pwd)>"\n')
  await terminal.shows('<xterm-256color|C.UTF-8|C.UTF-8|user|/home/user|/home/user>')
  await close(terminal)
})

test('options envs, cwd and user', async () => {
  const terminal = await open({ envs: { TERM: 'vt100', MINE: 'a b' }, cwd: '/tmp', user: 'root' })
  await terminal.type('echo "<$TERM|$MINE|$(whoami)|$(pwd)>"\n')
  await terminal.shows('<vt100|a b|root|/tmp>')
  await close(terminal)
})

test('a cwd or a user that is missing', async () => {
  await failure(open({ cwd: '/no/such/place' }), InvalidArgumentError, /cwd '\/no\/such\/place' does not exist/)
  await failure(open({ user: 'stranger' }), AuthenticationError, /invalid username: 'stranger'/)
})

test('the size, and resize', async () => {
  const terminal = await open({ cols: 101, rows: 31 })
  await terminal.type('trap "echo win""ch" WINCH; stty size\n')
  await terminal.shows('31 101')
  await shared.box.pty.resize(terminal.pid, { cols: 132, rows: 50 })
  await terminal.type('stty size; tput cols\n')
  await terminal.shows('50 132')
  await terminal.shows('winch')
  await close(terminal)
})

test('resize of and input for an unknown pid', async () => {
  await failure(shared.box.pty.resize(noPid, { cols: 80, rows: 24 }), NotFoundError)
  await failure(shared.box.pty.sendInput(noPid, bytes('x')), NotFoundError)
  await failure(shared.box.pty.connect(noPid, { onData: () => {} }), NotFoundError)
})

test('Ctrl-C ends the command and not the shell', async () => {
  const terminal = await open()
  await terminal.type('echo $((1+1))-ready; sleep 4712.1\n')
  await terminal.shows('2-ready')
  await until('the command', () => isAlive(shared.box, 'sleep 4712.1'))
  await terminal.type('\x03')
  await until('its end', async () => !(await isAlive(shared.box, 'sleep 4712.1')))
  await terminal.type('echo status $?-still-$((3+4))\n')
  await terminal.shows('status 130-still-7')
  await close(terminal)
})

test('Ctrl-D ends the shell', async () => {
  const terminal = await open()
  await terminal.type('echo $((1+1))-ready\n')
  await terminal.shows('2-ready')
  await terminal.type('\x04')
  assert.equal((await within('the end', terminal.handle.wait())).exitCode, 0)
})

test('exit codes', async () => {
  const fine = await open()
  await fine.type('exit\n')
  assert.equal((await within('the end', fine.handle.wait())).exitCode, 0)
  const bad = await open()
  await bad.type('exit 7\n')
  const error = await failure(within('the end', bad.handle.wait()), CommandExitError)
  assert.equal(error.exitCode, 7)
  assert.equal(error.error, 'exit status 7')
  assert.equal(bad.handle.exitCode, 7)
})

test('all that was shown arrives before the end', async () => {
  const terminal = await open()
  await terminal.type('seq 1 20000; echo $((1+1))-last; exit\n')
  await within('the end', terminal.handle.wait())
  assert.match(terminal.text, /\r\n19999\r\n20000\r\n2-last\r\n/)
})

test('kill', async () => {
  const terminal = await open()
  assert.equal(await shared.box.pty.kill(terminal.pid), true)
  const error = await failure(within('the end', terminal.handle.wait()), CommandExitError)
  assert.equal(error.exitCode, -1)
  assert.equal(error.error, 'signal: killed')
  assert.equal(await shared.box.pty.kill(terminal.pid), false)
  assert.equal(await terminal.handle.kill(), false)
  assert.equal(await shared.box.pty.kill(noPid), false)
})

test('kill by the handle', async () => {
  const terminal = await open()
  assert.equal(await terminal.handle.kill(), true)
  await failure(within('the end', terminal.handle.wait()), CommandExitError)
})

test('it is listed', async () => {
  const terminal = await open({ cwd: '/tmp', envs: { MINE: 'x' } })
  const found = (await shared.box.commands.list()).find((p) => p.pid === terminal.pid)
  assert.deepEqual(found, {
    pid: terminal.pid, cmd: '/bin/bash', args: ['-i', '-l'], cwd: '/tmp',
    envs: { MINE: 'x', TERM: 'xterm-256color', LANG: 'C.UTF-8', LC_ALL: 'C.UTF-8' },
  })
  await close(terminal)
})

test('connect from elsewhere', async () => {
  const terminal = await open()
  await terminal.type('KEPT=here; echo $((1+1))-first\n')
  await terminal.shows('2-first')
  await terminal.handle.disconnect()
  const before = terminal.text

  let text = ''
  const again = await shared.box.pty.connect(terminal.pid, { onData: (data) => { text += new TextDecoder().decode(data) } })
  assert.equal(again.pid, terminal.pid)
  await terminal.type('echo $KEPT-$((2+2))\n')
  await until('output', () => text.includes('here-4'))
  assert.ok(!text.includes('2-first'), 'output of the time before')
  assert.equal(terminal.text, before, 'the first handle continues')
  assert.equal(await again.kill(), true)
  await failure(within('the end', again.wait()), CommandExitError)
})

test('two handles at once', async () => {
  const terminal = await open()
  let text = ''
  const other = await shared.box.pty.connect(terminal.pid, { onData: (data) => { text += new TextDecoder().decode(data) } })
  await terminal.type('echo $((5+5))-both; exit 3\n')
  assert.equal((await failure(within('the end', terminal.handle.wait()), CommandExitError)).exitCode, 3)
  assert.equal((await failure(within('the end', other.wait()), CommandExitError)).exitCode, 3)
  assert.match(terminal.text, /10-both/)
  assert.match(text, /10-both/)
})

test('timeoutMs ends the terminal', async () => {
  const terminal = await open({ timeoutMs: 1500 })
  await failure(within('the end', terminal.handle.wait()), TimeoutError)
  await until('nothing in the list', async () => !(await shared.box.commands.list()).some((p) => p.pid === terminal.pid))
})

test('timeoutMs 0 is no limit', async () => {
  const terminal = await open({ timeoutMs: 0 })
  await terminal.type('sleep 1; echo $((6+6))-late\n')
  await terminal.shows('12-late')
  await close(terminal)
})

test('a full-screen program gets single keys', async () => {
  const terminal = await open()
  await terminal.type(`python3 -c 'import sys,tty; tty.setraw(0); print("as-" + "is", flush=True); print("key", [ord(c) for c in sys.stdin.read(2)])'\n`)
  await terminal.shows('as-is')
  await terminal.type('\x03')
  await terminal.type('q')
  await terminal.shows('key [3, 113]')
  await close(terminal)
})

test('the end of a terminal ends what runs in it', async () => {
  const terminal = await open()
  await terminal.type('sleep 4712.2\n')
  await until('the command', () => isAlive(shared.box, 'sleep 4712.2'))
  await close(terminal)
  await until('its end', async () => !(await isAlive(shared.box, 'sleep 4712.2')))
})
