// Watching directories, as the SDK documents it.
import assert from 'node:assert/strict'
import { FileNotFoundError, FileType, FilesystemEventType, InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { failure, sharedSandbox, sleep, test, until } from './sandbox.mjs'

const { CHMOD, CREATE, REMOVE, RENAME, WRITE } = FilesystemEventType
const shared = sharedSandbox()
let count = 0

// A new directory with all that a watch on it tells.
async function watch(opts = {}, prepare = undefined) {
  const { files } = shared.box
  const dir = `/home/user/watched-${++count}`
  await files.makeDir(dir)
  await prepare?.(dir)
  const w = { dir, events: [], exits: [] }
  w.path = (name) => `${dir}/${name}`
  w.handle = await files.watchDir(dir, (event) => { w.events.push(event) }, { onExit: (error) => { w.exits.push(error) }, ...opts })
  w.has = (name, type) => w.events.some((e) => e.name === name && e.type === type)
  w.told = () => `told: ${w.events.map((e) => `${e.type} ${e.name}`).join(', ')}; ended: ${w.exits.map(String)}`
  w.tells = (name, type) => until(() => `${type} of ${name}; ${w.told()}`, () => w.has(name, type))
  w.names = () => [...new Set(w.events.map((e) => e.name))].sort()
  return w
}

test('create and write of a new file', async () => {
  const w = await watch()
  await shared.box.files.write(w.path('new file ü.txt'), 'x')
  await w.tells('new file ü.txt', CREATE)
  await w.tells('new file ü.txt', WRITE)
  assert.deepEqual(w.names(), ['new file ü.txt'], 'only the file itself is told')
  assert.equal(w.events[0].type, CREATE)
  await w.handle.stop()
})

test('write of a file that is there', async () => {
  const w = await watch({}, (dir) => shared.box.files.write(`${dir}/old`, 'x'))
  await shared.box.files.write(w.path('old'), 'much more')
  await w.tells('old', WRITE)
  assert.deepEqual(w.names(), ['old'], 'only the file itself is told')
  assert.ok(!w.has('old', CREATE) && !w.has('old', REMOVE) && !w.has('old', RENAME), w.told())
  await w.handle.stop()
})

test('remove', async () => {
  const w = await watch({}, (dir) => shared.box.files.write(`${dir}/old`, 'x'))
  await shared.box.files.remove(w.path('old'))
  await w.tells('old', REMOVE)
  assert.deepEqual(w.names(), ['old'])
  await w.handle.stop()
})

test('rename', async () => {
  const w = await watch({}, (dir) => shared.box.files.write(`${dir}/old`, 'x'))
  await shared.box.files.rename(w.path('old'), w.path('new'))
  await w.tells('old', RENAME)
  await w.tells('new', CREATE)
  await w.handle.stop()
})

test('chmod', async () => {
  const w = await watch({}, (dir) => shared.box.files.write(`${dir}/old`, 'x'))
  await shared.box.commands.run(`chmod 600 ${w.path('old')}`)
  await w.tells('old', CHMOD)
  assert.deepEqual(w.names(), ['old'])
  await w.handle.stop()
})

test('what commands do is told too', async () => {
  const w = await watch()
  await shared.box.commands.run('echo 1 > a; mv a b; echo 2 >> b; mkdir d; rm b; rmdir d', { cwd: w.dir })
  await w.tells('d', REMOVE)
  for (const [name, type] of [['a', CREATE], ['a', WRITE], ['a', RENAME], ['b', CREATE], ['b', WRITE], ['b', REMOVE], ['d', CREATE]]) {
    await w.tells(name, type)
  }
  await w.handle.stop()
})

test('directories below are not told without recursive', async () => {
  const w = await watch({}, (dir) => shared.box.files.makeDir(`${dir}/below`))
  await shared.box.files.write(w.path('below/file'), 'x')
  await shared.box.files.write(w.path('end'), 'x')
  await w.tells('end', CREATE)
  assert.ok(!w.names().includes('below/file'), w.told())
  await w.handle.stop()
})

test('recursive', async () => {
  const w = await watch({ recursive: true }, (dir) => shared.box.files.makeDir(`${dir}/one/two`))
  await shared.box.files.write(w.path('one/two/file'), 'x')
  await w.tells('one/two/file', CREATE)
  await w.tells('one/two/file', WRITE)
  await shared.box.files.remove(w.path('one/two'))
  await w.tells('one/two', REMOVE)
  await w.handle.stop()
})

test('recursive, in directories that come later', async () => {
  const w = await watch({ recursive: true })
  await shared.box.files.makeDir(w.path('late'))
  await w.tells('late', CREATE)
  await shared.box.files.write(w.path('late/file'), 'x')
  await w.tells('late/file', WRITE)
  await shared.box.files.write(w.path('late/deep/er/file'), 'x')
  await w.tells('late/deep', CREATE)
  await w.tells('late/deep/er/file', CREATE)
  await w.handle.stop()
})

test('recursive, when directories and files come all at once', async () => {
  const w = await watch({ recursive: true })
  const numbers = Array.from({ length: 20 }, (_, i) => i)
  await shared.box.commands.run('for i in $(seq 0 19); do mkdir -p a$i/b && echo x > a$i/b/c; done', { cwd: w.dir })
  for (const i of numbers) {
    await w.tells(`a${i}`, CREATE)
    await w.tells(`a${i}/b`, CREATE)
    await w.tells(`a${i}/b/c`, CREATE)
  }
  await w.handle.stop()
})

test('recursive, a directory that is moved in', async () => {
  await shared.box.commands.run('mkdir -p /home/user/outside/sub')
  const w = await watch({ recursive: true })
  await shared.box.files.rename('/home/user/outside', w.path('inside'))
  await w.tells('inside', CREATE)
  await shared.box.files.write(w.path('inside/sub/file'), 'x')
  await w.tells('inside/sub/file', CREATE)
  await w.handle.stop()
})

test('includeEntry describes the file', async () => {
  const w = await watch({ includeEntry: true })
  await shared.box.files.write(w.path('file'), '12345')
  await w.tells('file', WRITE)
  const described = await until('an entry', () => w.events.findLast((e) => e.type === WRITE && e.entry?.size === 5)?.entry)
  const { modifiedTime, ...rest } = described
  assert.ok(modifiedTime instanceof Date)
  assert.deepEqual(rest, {
    name: 'file', type: FileType.FILE, path: w.path('file'), size: 5, mode: 0o644, permissions: '-rw-r--r--',
    owner: 'user', group: 'user', symlinkTarget: undefined, metadata: undefined,
  })
  await shared.box.files.makeDir(w.path('dir'))
  await w.tells('dir', CREATE)
  assert.equal(w.events.find((e) => e.name === 'dir').entry.type, FileType.DIR)
  await shared.box.files.remove(w.path('file'))
  await w.tells('file', REMOVE)
  assert.equal(w.events.find((e) => e.type === REMOVE).entry, undefined)
  await w.handle.stop()
})

test('includeEntry and recursive', async () => {
  const w = await watch({ includeEntry: true, recursive: true })
  await shared.box.files.write(w.path('one/two/file'), 'x')
  await w.tells('one/two/file', CREATE)
  assert.equal(w.events.find((e) => e.name === 'one/two/file').entry.path, w.path('one/two/file'))
  await w.handle.stop()
})

test('without includeEntry there is none', async () => {
  const w = await watch()
  await shared.box.files.write(w.path('file'), 'x')
  await w.tells('file', WRITE)
  assert.ok(w.events.every((e) => e.entry === undefined))
  await w.handle.stop()
})

test('two watches of one directory', async () => {
  const w = await watch()
  const other = []
  const second = await shared.box.files.watchDir(w.dir, (event) => { other.push(event.name) })
  await shared.box.files.write(w.path('file'), 'x')
  await w.tells('file', WRITE)
  await until('the other', () => other.includes('file'))
  await w.handle.stop()
  await shared.box.files.write(w.path('next'), 'x')
  await until('the other', () => other.includes('next'))
  await second.stop()
})

test('stop', async () => {
  const w = await watch()
  await w.handle.stop()
  await until('onExit', () => w.exits.length > 0)
  await shared.box.files.write(w.path('file'), 'x')
  await sleep(500)
  assert.deepEqual(w.events, [])
  assert.equal(w.exits.length, 1)
})

test('timeoutMs ends the watch', async () => {
  const w = await watch({ timeoutMs: 1000 })
  await until('onExit', () => w.exits.length > 0)
  await failure(Promise.reject(w.exits[0]), TimeoutError, /deadline_exceeded/)
})

test('timeoutMs 0 is no limit', async () => {
  const w = await watch({ timeoutMs: 0 })
  await sleep(1000)
  await shared.box.files.write(w.path('file'), 'x')
  await w.tells('file', CREATE)
  await w.handle.stop()
})

test('a directory that is missing', async () => {
  const error = await failure(shared.box.files.watchDir('/no/such/place', () => {}), FileNotFoundError)
  assert.ok(error instanceof NotFoundError)
})

test('a file is not watched', async () => {
  await shared.box.files.write('plain', 'x')
  await failure(shared.box.files.watchDir('plain', () => {}), InvalidArgumentError)
})

test('a path is relative to the home of the user', async () => {
  await shared.box.files.makeDir('rel')
  const names = []
  const mine = await shared.box.files.watchDir('rel', (event) => { names.push(event.name) })
  await shared.box.files.write('/home/user/rel/file', 'x')
  await until('the event', () => names.includes('file'))
  await mine.stop()
  await shared.box.files.makeDir('/root/rel', { user: 'root' })
  const roots = await shared.box.files.watchDir('rel', (event) => { names.push(event.name) }, { user: 'root' })
  await shared.box.files.write('/root/rel/other', 'x', { user: 'root' })
  await until('the event', () => names.includes('other'))
  await roots.stop()
})

test('allowNetworkMounts is accepted', async () => {
  const w = await watch({ allowNetworkMounts: true })
  await shared.box.files.write(w.path('file'), 'x')
  await w.tells('file', CREATE)
  await w.handle.stop()
})
