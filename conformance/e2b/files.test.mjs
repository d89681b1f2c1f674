// Files, as the SDK documents them.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { AuthenticationError, FileNotFoundError, FileType, InvalidArgumentError, NotFoundError } from 'e2b'
import { failure, sharedSandbox, test } from './sandbox.mjs'

const shared = sharedSandbox()
const files = () => shared.box.files
const shell = async (cmd, opts) => (await shared.box.commands.run(cmd, opts)).stdout.trimEnd()

// Every byte there is, some of them at odd places.
const everyByte = Uint8Array.from({ length: 70_001 }, (_, i) => (i * 7) % 256)
const streamOf = (data, size = 1000) => new ReadableStream({
  start(controller) {
    for (let at = 0; at < data.length; at += size) controller.enqueue(data.slice(at, at + size))
    controller.close()
  },
})
const same = (got, want, what) => assert.ok(Buffer.from(got).equals(Buffer.from(want)), `${what}: the content is another`)
const sha256 = (data) => createHash('sha256').update(data).digest('hex')

async function drain(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}

test('write a string', async () => {
  const info = await files().write('/home/user/hello.txt', 'Hello, wörld\n')
  assert.deepEqual({ ...info }, { name: 'hello.txt', type: FileType.FILE, path: '/home/user/hello.txt', metadata: undefined })
  assert.equal(await files().read('/home/user/hello.txt'), 'Hello, wörld\n')
  assert.equal(await shell('cat hello.txt'), 'Hello, wörld')
})

for (const [kind, make] of Object.entries({
  ArrayBuffer: () => everyByte.buffer,
  Blob: () => new Blob([everyByte]),
  ReadableStream: () => streamOf(everyByte),
})) {
  for (const useOctetStream of [undefined, false, true]) {
    test(`write a ${kind}, useOctetStream ${useOctetStream}`, async () => {
      const path = `/home/user/kinds/${kind}-${useOctetStream}`
      const info = await files().write(path, make(), { useOctetStream })
      assert.equal(info.path, path)
      assert.equal(info.type, FileType.FILE)
      same(await files().read(path, { format: 'bytes' }), everyByte, 'read')
    })
  }
}

test('write an empty file, and read it in every format', async () => {
  for (const useOctetStream of [false, true]) {
    await files().write('empty', '', { useOctetStream })
    assert.equal(await files().read('empty'), '')
    assert.equal((await files().read('empty', { format: 'bytes' })).length, 0)
    assert.equal((await files().read('empty', { format: 'blob' })).size, 0)
    assert.equal((await drain(await files().read('empty', { format: 'stream' }))).length, 0)
    assert.equal((await files().getInfo('empty')).size, 0)
  }
})

test('write over a longer file', async () => {
  await files().write('over', 'a long text')
  await files().write('over', 'short')
  assert.equal(await files().read('over'), 'short')
})

test('write over a file keeps its permissions', async () => {
  await files().write('program', '#!/bin/sh\necho 1\n')
  await shell('chmod 755 program')
  await files().write('program', '#!/bin/sh\necho 2\n')
  assert.equal((await files().getInfo('program')).mode, 0o755)
  assert.equal(await shell('./program'), '2')
})

test('several files at once', async () => {
  for (const useOctetStream of [undefined, true]) {
    const infos = await files().write([
      { path: 'several/one.txt', data: 'one' },
      { path: '/home/user/several/deep/er/two.bin', data: everyByte.buffer },
      { path: 'several/three ü.txt', data: new Blob(['three']) },
    ], { useOctetStream })
    assert.deepEqual(infos.map(({ name, type, path }) => ({ name, type, path })), [
      { name: 'one.txt', type: FileType.FILE, path: '/home/user/several/one.txt' },
      { name: 'two.bin', type: FileType.FILE, path: '/home/user/several/deep/er/two.bin' },
      { name: 'three ü.txt', type: FileType.FILE, path: '/home/user/several/three ü.txt' },
    ])
    assert.equal(await files().read('several/one.txt'), 'one')
    same(await files().read('several/deep/er/two.bin', { format: 'bytes' }), everyByte, 'two.bin')
    assert.equal(await files().read('several/three ü.txt'), 'three')
    await files().remove('several')
  }
})

test('writeFiles, one file and none', async () => {
  const one = await files().writeFiles([{ path: 'single', data: 'x' }])
  assert.equal(one.length, 1)
  assert.equal(one[0].path, '/home/user/single')
  assert.deepEqual(await files().writeFiles([]), [])
})

test('the same path twice at once', async () => {
  await failure(files().write([{ path: 'twice', data: '1' }, { path: '/home/user/twice', data: '2' }]), InvalidArgumentError)
})

test('missing parents are made, for the user', async () => {
  await files().write('made/for/me/file', 'x')
  assert.equal(await shell(`stat -c '%U:%G %a' made made/for made/for/me made/for/me/file`),
    'user:user 755\nuser:user 755\nuser:user 755\nuser:user 644')
})

test('names with spaces and characters of all kinds', async () => {
  for (const name of ['with space', 'päth/日本語/😀.txt', `it's & $(echo no);#%41+?.txt`, '-dash', 'semi;colon=1, comma']) {
    const path = `/home/user/names/${name}`
    assert.equal((await files().write(path, name)).path, path)
    assert.equal(await files().read(path), name)
    assert.equal((await files().getInfo(path)).path, path)
    const [info] = await files().write([{ path, data: 'several' }])
    assert.equal(info.path, path)
    assert.equal(await files().read(path), 'several')
    await files().remove(path)
    assert.equal(await files().exists(path), false)
  }
})

test('a name with quotes and a backslash', async () => {
  const path = '/home/user/names/a "quoted" \\ name'
  await files().write(path, 'x', { useOctetStream: true })
  assert.equal(await files().read(path), 'x')
  assert.equal(await shell(`cat 'names/a "quoted" \\ name'`), 'x')
})

test('paths are relative to the home of the user', async () => {
  await files().write('relative', 'mine')
  assert.equal((await files().write('~/tilde', 'x')).path, '/home/user/tilde')
  assert.equal((await files().write('relative', 'root', { user: 'root' })).path, '/root/relative')
  assert.equal(await files().read('/home/user/relative'), 'mine')
  assert.equal(await files().read('relative', { user: 'root' }), 'root')
  assert.equal((await files().getInfo('relative', { user: 'root' })).path, '/root/relative')
})

test('what is written belongs to the user', async () => {
  await files().write('/tmp/own/mine', 'x')
  await files().write('/tmp/own/roots', 'x', { user: 'root' })
  await files().makeDir('/tmp/own/dir')
  await files().makeDir('/tmp/own/rootdir', { user: 'root' })
  const owner = async (path) => (await files().getInfo(path)).owner
  assert.equal(await owner('/tmp/own/mine'), 'user')
  assert.equal(await owner('/tmp/own/roots'), 'root')
  assert.equal(await owner('/tmp/own/dir'), 'user')
  assert.equal(await owner('/tmp/own/rootdir'), 'root')
  assert.equal(await shell('stat -c %U /tmp/own/mine /tmp/own/roots'), 'user\nroot')
  assert.equal(await shell('echo more >> /tmp/own/mine && cat /tmp/own/mine'), 'xmore')
})

test('an unknown user', async () => {
  const user = 'stranger'
  await failure(files().read('x', { user }), AuthenticationError)
  await failure(files().write('x', 'y', { user }), AuthenticationError)
  await failure(files().list('/', { user }), AuthenticationError, /invalid username: 'stranger'/)
  await failure(files().makeDir('x', { user }), AuthenticationError)
})

test('read in every format', async () => {
  await files().write('formats', everyByte.buffer)
  const bytes = await files().read('formats', { format: 'bytes' })
  assert.ok(bytes instanceof Uint8Array)
  same(bytes, everyByte, 'bytes')
  const blob = await files().read('formats', { format: 'blob' })
  assert.ok(blob instanceof Blob)
  same(await blob.arrayBuffer(), everyByte, 'blob')
  same(await drain(await files().read('formats', { format: 'stream' })), everyByte, 'stream')
  await files().write('formats', 'text ü€😀')
  assert.equal(await files().read('formats', { format: 'text' }), 'text ü€😀')
})

test('large files, as streams', async () => {
  const data = randomBytes(24 << 20)
  await files().write('large', streamOf(data, 100_000))
  assert.equal(await shell('sha256sum < large | cut -d" " -f1'), sha256(data))
  assert.equal(sha256(await drain(await files().read('large', { format: 'stream' }))), sha256(data))
  await files().remove('large')
})

test('a stream that is given up', async () => {
  await files().write('given-up', new Uint8Array(8 << 20).buffer)
  const reader = (await files().read('given-up', { format: 'stream' })).getReader()
  await reader.read()
  await reader.cancel()
  assert.equal((await files().getInfo('given-up')).size, 8 << 20)
  await files().remove('given-up')
})

test('read what is missing', async () => {
  for (const format of ['text', 'bytes', 'blob', 'stream']) {
    const error = await failure(files().read('/no/such/file', { format }), FileNotFoundError)
    assert.ok(error instanceof NotFoundError)
  }
})

test('read a directory', async () => {
  await failure(files().read('/home/user'), InvalidArgumentError)
})

test('gzip, both ways', async () => {
  const text = 'compress me, '.repeat(50_000)
  const info = await files().write('zipped', text, { gzip: true })
  assert.equal(info.path, '/home/user/zipped')
  assert.equal((await files().getInfo('zipped')).size, text.length, 'it is kept as it was')
  assert.equal(await files().read('zipped', { gzip: true }), text)
  assert.equal(await files().read('zipped'), text)
  const bytes = await files().read('zipped', { gzip: true, format: 'bytes' })
  same(bytes, Buffer.from(text), 'bytes')
  same(await drain(await files().read('zipped', { gzip: true, format: 'stream' })), Buffer.from(text), 'stream')
  const blob = await files().read('zipped', { gzip: true, format: 'blob' })
  assert.equal(await blob.text(), text)
})

test('gzip of streams, of several files and of nothing', async () => {
  await files().write('zip/stream', streamOf(everyByte), { gzip: true })
  same(await files().read('zip/stream', { gzip: true, format: 'bytes' }), everyByte, 'stream')
  const infos = await files().write([{ path: 'zip/a', data: 'a' }, { path: 'zip/b', data: new Blob(['b']) }], { gzip: true })
  assert.deepEqual(infos.map((i) => i.name), ['a', 'b'])
  assert.equal(await files().read('zip/b', { gzip: true }), 'b')
  await files().write('zip/none', '', { gzip: true })
  assert.equal(await files().read('zip/none', { gzip: true }), '')
})

test('gzip travels compressed', async () => {
  await files().write('zipped-2', 'compress me, '.repeat(50_000))
  const url = await shared.box.downloadUrl('zipped-2')
  const zipped = await fetch(url, { headers: { 'Accept-Encoding': 'gzip' } })
  assert.equal(zipped.headers.get('content-encoding'), 'gzip')
  assert.equal((await zipped.text()).length, 650_000)
  const plain = await fetch(url, { headers: { 'Accept-Encoding': 'identity' } })
  assert.equal(plain.headers.get('content-encoding'), null)
  assert.equal((await plain.text()).length, 650_000)
})

test('exists', async () => {
  await files().write('there/file', 'x')
  assert.equal(await files().exists('there/file'), true)
  assert.equal(await files().exists('there'), true)
  assert.equal(await files().exists('there/not'), false)
})

test('getInfo of a file', async () => {
  const before = Date.now()
  await files().write('info/file.txt', '12345')
  const { modifiedTime, ...rest } = await files().getInfo('info/file.txt')
  assert.deepEqual(rest, {
    name: 'file.txt', type: FileType.FILE, path: '/home/user/info/file.txt', size: 5, mode: 0o644, permissions: '-rw-r--r--',
    owner: 'user', group: 'user', symlinkTarget: undefined, metadata: undefined,
  })
  assert.ok(modifiedTime instanceof Date)
  assert.ok(Math.abs(modifiedTime - before) < 60_000, `${modifiedTime.toISOString()} is not about now`)
})

test('getInfo of a directory', async () => {
  await files().makeDir('info/dir')
  const { name, type, path, mode, permissions, owner, symlinkTarget } = await files().getInfo('info/dir')
  assert.deepEqual({ name, type, path, mode, permissions, owner, symlinkTarget }, {
    name: 'dir', type: FileType.DIR, path: '/home/user/info/dir', mode: 0o755, permissions: 'drwxr-xr-x', owner: 'user', symlinkTarget: undefined,
  })
})

test('getInfo of a symbolic link', async () => {
  await files().write('links/target', '0123456789')
  await shell('chmod 640 target; ln -sf target link; ln -sfn /home/user/links dirlink', { cwd: '/home/user/links' })
  const link = await files().getInfo('links/link')
  assert.equal(link.name, 'link')
  assert.equal(link.path, '/home/user/links/link')
  assert.equal(link.type, FileType.FILE)
  assert.equal(link.symlinkTarget, '/home/user/links/target')
  assert.equal(link.mode, 0o640, 'the mode is that of the target')
  assert.equal(link.permissions, 'Lrwxrwxrwx', 'the permissions are those of the link')
  assert.equal(link.size, 'target'.length, 'the size is that of the link')
  const dir = await files().getInfo('links/dirlink')
  assert.equal(dir.type, FileType.DIR)
  assert.equal(dir.symlinkTarget, '/home/user/links')
  assert.equal(await files().read('links/link'), '0123456789')
})

test('getInfo of permissions, owner and time as set', async () => {
  await files().write('info/set', 'x')
  await shell('chown root:daemon /home/user/info/set; chmod 4751 /home/user/info/set; touch -d @1234567890.5 /home/user/info/set', { user: 'root' })
  const { owner, group, mode, permissions, modifiedTime } = await files().getInfo('info/set')
  assert.equal(owner, 'root')
  assert.equal(group, 'daemon')
  assert.equal(mode & 0o777, 0o751)
  assert.equal(permissions, 'urwxr-x--x')
  assert.equal(modifiedTime.getTime(), 1_234_567_890_500)
})

test('getInfo of a file larger than 32 bits', async () => {
  await shell('truncate -s 5G sparse')
  assert.equal((await files().getInfo('sparse')).size, 5 * 2 ** 30)
  await files().remove('sparse')
})

test('getInfo of what is missing', async () => {
  await failure(files().getInfo('/no/such/file'), FileNotFoundError)
})

test('on the wire sizes are strings, types names and times RFC 3339', async () => {
  await files().write('wire', '12345')
  const { box } = shared
  const token = (await apiSandbox(box)).envdAccessToken
  const res = await fetch(new URL('/filesystem.Filesystem/Stat', process.env.E2B_SANDBOX_URL), {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': token },
    body: JSON.stringify({ path: 'wire' }),
  })
  assert.equal(res.status, 200)
  const { entry } = await res.json()
  assert.equal(entry.size, '5')
  assert.equal(entry.type, 'FILE_TYPE_FILE')
  assert.equal(entry.mode, 0o644)
  assert.match(entry.modifiedTime, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/)
  assert.ok(!('symlinkTarget' in entry) && !('metadata' in entry), 'what is unset is left out')
})

test('list', async () => {
  await files().write([
    { path: 'list/b/two', data: '2' }, { path: 'list/b/c/three', data: '3' }, { path: 'list/a.txt', data: '1' }, { path: 'list/z', data: '' },
  ])
  const names = async (depth) => (await files().list('list', { depth })).map((e) => e.path.slice('/home/user/list/'.length))
  assert.deepEqual(await names(undefined), ['a.txt', 'b', 'z'])
  assert.deepEqual(await names(1), ['a.txt', 'b', 'z'])
  assert.deepEqual(await names(2), ['a.txt', 'b', 'b/c', 'b/two', 'z'])
  assert.deepEqual(await names(9), ['a.txt', 'b', 'b/c', 'b/c/three', 'b/two', 'z'])
  const [file, dir] = await files().list('/home/user/list')
  assert.deepEqual(file, await files().getInfo('list/a.txt'))
  assert.deepEqual(dir, await files().getInfo('list/b'))
})

test('list of an empty directory, of a link to one, and of broken links', async () => {
  await files().makeDir('list2/real')
  assert.deepEqual(await files().list('list2/real'), [])
  await shell('ln -sfn real via; ln -sf nowhere broken; touch real/file', { cwd: '/home/user/list2' })
  assert.deepEqual((await files().list('list2/via')).map((e) => e.name), ['file'])
  assert.deepEqual((await files().list('list2')).map((e) => e.name), ['real', 'via'])
})

test('list of what cannot be listed', async () => {
  await files().write('plain', 'x')
  await failure(files().list('/no/such/dir'), FileNotFoundError)
  await failure(files().list('plain'), InvalidArgumentError)
  await failure(files().list('/', { depth: 0 }), InvalidArgumentError)
})

test('a directory with many files', async () => {
  await shell('mkdir -p many && cd many && touch $(seq -w 1 3000)')
  const entries = await files().list('many')
  assert.equal(entries.length, 3000)
  assert.equal(entries[2999].name, '3000')
})

test('makeDir', async () => {
  assert.equal(await files().makeDir('dirs/one/two'), true)
  assert.equal(await files().makeDir('dirs/one/two'), false)
  assert.equal(await files().makeDir('/home/user/dirs/one'), false)
  assert.equal((await files().getInfo('dirs/one')).owner, 'user')
  assert.equal((await files().getInfo('dirs/one/two')).type, FileType.DIR)
})

test('rename', async () => {
  await files().write('rename/old', 'content')
  const info = await files().rename('rename/old', '/home/user/rename/sub/new')
  assert.deepEqual(info, await files().getInfo('rename/sub/new'))
  assert.equal(info.name, 'new')
  assert.equal(info.size, 7)
  assert.equal(await files().exists('rename/old'), false)
  assert.equal(await files().read('rename/sub/new'), 'content')
  assert.equal((await files().getInfo('rename/sub')).owner, 'user')
})

test('rename over a file, and of a directory', async () => {
  await files().write([{ path: 'rename2/a', data: 'a' }, { path: 'rename2/b', data: 'b' }])
  await files().rename('rename2/a', 'rename2/b')
  assert.equal(await files().read('rename2/b'), 'a')
  assert.equal((await files().rename('rename2', 'renamed')).type, FileType.DIR)
  assert.equal(await files().read('renamed/b'), 'a')
})

test('rename of what is missing', async () => {
  await failure(files().rename('/no/such/file', 'x'), FileNotFoundError)
})

test('remove', async () => {
  await files().write('remove/deep/file', 'x')
  await files().remove('remove/deep/file')
  assert.equal(await files().exists('remove/deep/file'), false)
  await files().remove('remove')
  assert.equal(await files().exists('remove'), false)
  await files().remove('remove')
})

test('remove takes a link and not what it leads to', async () => {
  await files().write('kept/file', 'x')
  await shell('ln -s kept way')
  await files().remove('way')
  assert.equal(await files().read('kept/file'), 'x')
})

test('metadata', async () => {
  const metadata = { Author: 'me', 'two-words': 'a value, with = signs', empty: '' }
  const kept = { author: 'me', 'two-words': 'a value, with = signs', empty: '' }
  for (const [name, opts] of Object.entries({ multipart: {}, octets: { useOctetStream: true }, zipped: { gzip: true } })) {
    const path = `marked/${name}`
    const info = await files().write(path, 'x', { metadata, ...opts })
    assert.deepEqual({ ...info.metadata }, kept, name)
    assert.deepEqual({ ...(await files().getInfo(path)).metadata }, kept, name)
  }
  const listed = await files().list('marked')
  assert.deepEqual(listed.map((e) => ({ ...e.metadata })), [kept, kept, kept])
  const moved = await files().rename('marked/multipart', 'marked/moved')
  assert.deepEqual({ ...moved.metadata }, kept)
})

test('metadata of several files, and of one written again', async () => {
  const infos = await files().write([{ path: 'marked2/a', data: '1' }, { path: 'marked2/b', data: '2' }], { metadata: { kind: 'draft' } })
  assert.deepEqual(infos.map((i) => ({ ...i.metadata })), [{ kind: 'draft' }, { kind: 'draft' }])
  await files().write('marked2/a', 'x', { metadata: { other: 'y' } })
  assert.deepEqual({ ...(await files().getInfo('marked2/a')).metadata }, { other: 'y' })
  const again = await files().write('marked2/b', 'x')
  assert.equal(again.metadata, undefined)
  assert.equal((await files().getInfo('marked2/b')).metadata, undefined)
})

test('metadata is an attribute of the file', async () => {
  await files().write('marked3', 'x', { metadata: { kind: 'draft' } })
  assert.equal(await shell(`python3 -c 'import os; print(os.getxattr("marked3", "user.e2b.kind").decode())'`), 'draft')
  await shell(`python3 -c 'import os; os.setxattr("marked3", "user.e2b.more", b"from inside")'`)
  assert.deepEqual({ ...(await files().getInfo('marked3')).metadata }, { kind: 'draft', more: 'from inside' })
})

test('metadata that cannot be', async () => {
  await failure(files().write('marked4', 'x', { metadata: { 'a b': 'x' } }), InvalidArgumentError)
  await failure(files().write('marked4', 'x', { metadata: { a: 'ü' } }), InvalidArgumentError)
})

// The sandbox as the API describes it to whoever connects.
async function apiSandbox(box) {
  const res = await fetch(new URL(`/sandboxes/${box.sandboxId}/connect`, process.env.E2B_API_URL), {
    method: 'POST', headers: { 'X-API-KEY': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }, body: '{"timeout":60}',
  })
  return res.json()
}
