// Snapshots and forks: what is saved of a sandbox, and what others begin as.
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'
import { failure, test, until, within } from './sandbox.mjs'

const made = []
const saved = []

async function create(...args) {
  const box = await Sandbox.create(...args)
  made.push(box)
  return box
}

async function save(box, opts) {
  const snapshot = await box.createSnapshot(opts)
  saved.push(snapshot.snapshotId)
  return snapshot
}

after(async () => {
  for (const box of made) await box.kill()
  for (const id of saved) await Sandbox.deleteSnapshot(id)
})

const counting = 'i=0; while true; do i=$((i+1)); echo $i > /tmp/count; sleep 0.05; done'
const count = async (box) => Number(await box.files.read('/tmp/count').catch(() => 0))

test('sandboxes begin as a snapshot: files, programs, nobody else\'s names', async () => {
  const box = await create('base', { metadata: { of: 'the first' }, envs: { KEPT: 'no' } })
  await box.files.write('state', 'before')
  const program = await box.commands.run(counting, { background: true, timeoutMs: 0 })
  await until('the count', async () => (await count(box)) > 2)
  const snapshot = await save(box)
  assert.equal(await box.isRunning(), true)
  await box.files.write('state', 'after')
  assert.equal(await box.kill(), true)
  const twins = [await create(snapshot.snapshotId, { metadata: { of: 'a twin' } }), await create(snapshot.snapshotId)]
  for (const twin of twins) {
    assert.notEqual(twin.sandboxId, box.sandboxId)
    assert.equal(await twin.files.read('state'), 'before')
    assert.equal((await twin.commands.run('whoami; pwd; echo $E2B_SANDBOX')).stdout, 'user\n/home/user\ntrue\n')
    const begin = await count(twin)
    await until('more', async () => (await count(twin)) > begin)
    assert.ok((await twin.commands.list()).some((p) => p.pid === program.pid), 'the program goes on')
  }
  assert.deepEqual((await twins[0].getInfo()).metadata, { of: 'a twin' })
  assert.equal((await twins[0].getInfo()).templateId, snapshot.snapshotId)
  await twins[0].files.write('state', 'mine')
  assert.equal(await twins[1].files.read('state'), 'before')
  await failure(twins[0].setTimeout('x'), SandboxError)
})

test('snapshots are found, by their names and tags too, and removed', async () => {
  const box = await create()
  const name = `snap-${Date.now()}`
  const plain = await save(box)
  const named = await save(box, { name })
  const tagged = await save(box, { name: `${name}:v2` })
  assert.deepEqual([plain.names, named.names, tagged.names], [[], [`${name}:default`], [`${name}:v2`]])
  const list = async (opts) => {
    const ids = []
    for (const pages = Sandbox.listSnapshots({ limit: 2, ...opts }); pages.hasNext; ) ids.push(...(await pages.nextItems()).map((s) => s.snapshotId))
    return ids.sort()
  }
  const all = [plain, named, tagged].map((s) => s.snapshotId).sort()
  assert.deepEqual(await list({ sandboxId: box.sandboxId }), all)
  assert.deepEqual((await list({})).filter((id) => all.includes(id)), all)
  assert.deepEqual(await list({ name }), [named.snapshotId])
  assert.deepEqual(await list({ name: `${name}:v2` }), [tagged.snapshotId])
  assert.deepEqual(await list({ name: `${name}-not` }), [])
  const again = await create(`${name}:v2`)
  assert.equal((await again.getInfo()).templateId, `${name}:v2`)
  await failure(box.createSnapshot({ name }), SandboxError, /409.*exists/)
  await failure(box.createSnapshot({ name: 'a name' }), SandboxError, /400/)
  assert.equal(await Sandbox.deleteSnapshot(`${name}:v2`), true)
  assert.equal(await Sandbox.deleteSnapshot(`${name}:v2`), false)
  assert.equal(await again.isRunning(), true, 'the original sandbox continues to run')
  await failure(Sandbox.create(`${name}:v2`), SandboxError, /404/)
  await box.pause()
  assert.ok((await save(box)).snapshotId, 'a paused one is saved')
  await box.kill()
  await failure(box.createSnapshot(), SandboxNotFoundError)
})

test('forks go on where the sandbox was', async () => {
  const box = await create('base', { metadata: { family: 'one' }, envs: { GLOBAL: 'yes' } })
  await box.commands.run(counting, { background: true, timeoutMs: 0 })
  await until('the count', async () => (await count(box)) > 2)
  await box.files.write('state', 'before')
  const forks = await within('three forks', box.fork({ count: 3, timeoutMs: 120_000 }), 60_000)
  made.push(...forks)
  assert.equal(new Set([box, ...forks].map((b) => b.sandboxId)).size, 4)
  for (const fork of forks) {
    assert.ok(fork instanceof Sandbox, `${fork}`)
    assert.equal(await fork.files.read('state'), 'before')
    assert.equal((await fork.commands.run('echo $GLOBAL')).stdout, 'yes\n')
    const begin = await count(fork)
    await until('more', async () => (await count(fork)) > begin)
    const info = await fork.getInfo()
    assert.deepEqual(info.metadata, { family: 'one' })
    assert.ok(info.endAt.getTime() - Date.now() < 121_000)
  }
  await forks[0].files.write('state', 'mine')
  assert.equal(await box.files.read('state'), 'before')
  await failure(box.fork({ count: 0 }), SandboxError, /400/)
  await failure(box.fork({ count: 101 }), SandboxError, /400/)
  await box.kill()
  await failure(box.fork(), SandboxNotFoundError)
})
