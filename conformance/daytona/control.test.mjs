// The rest of the control API: lists with each filter, snapshots, volumes, SSH, settings, and the faults of each.
import assert from 'node:assert/strict'
import { call, create, daytona, failure, sharedSandbox, test, unique, until } from './sandbox.mjs'

const shared = sharedSandbox()

async function idsOf(query) {
  const found = []
  for await (const box of daytona.list(query)) found.push(box.id)
  return found
}

test('lists: filters and orders', async () => {
  const group = unique('list')
  const before = new Date(Date.now() - 1000)
  const first = await create({ name: `${group}-a`, labels: { group }, autoDeleteInterval: 60, ttlMinutes: 30 })
  const second = await create({ name: `${group}-b`, labels: { group }, public: true })
  const both = [first.id, second.id]
  const labels = { group }
  const after = new Date(Date.now() + 1000)
  for (const [query, want] of [
    [{ name: `${group}-` }, both], [{ name: `${group}-a` }, [first.id]], [{ id: second.id.slice(0, 12) }, [second.id]],
    [{ labels, isPublic: true }, [second.id]], [{ labels, isPublic: false }, [first.id]], [{ labels, states: ['started', 'stopped'] }, both],
    [{ labels, states: ['archived'] }, []], [{ labels, targets: [first.target] }, both], [{ labels, targets: ['nowhere'] }, []],
    [{ labels, snapshots: [first.snapshot] }, both], [{ labels, snapshots: ['none'] }, []], [{ labels, isRecoverable: true }, []],
    [{ labels, minCpu: first.cpu, maxCpu: first.cpu, minMemoryGib: first.memory, maxMemoryGib: first.memory }, both], [{ labels, minCpu: 1000 }, []],
    [{ labels, minDiskGib: 100000 }, []], [{ labels, createdAtAfter: before, createdAtBefore: after }, both], [{ labels, createdAtAfter: after }, []],
    [{ labels, lastActivityAfter: before }, both], [{ labels, lastActivityBefore: before }, []], [{ labels, autoDestroyAtAfter: before }, [first.id]],
    [{ labels: { group, other: 'x' } }, []],
  ]) {
    assert.deepEqual((await idsOf(query)).sort(), [...want].sort(), JSON.stringify(query))
  }
  for (const sort of ['name', 'createdAt', 'cpu', 'memoryGib', 'diskGib', 'lastActivityAt', 'state', 'snapshot']) {
    for (const order of ['asc', 'desc']) {
      assert.deepEqual(await idsOf({ labels, sort, order, limit: 1 }), await idsOf({ labels, sort, order }), `${sort} ${order}`)
    }
  }
  assert.deepEqual(await idsOf({ labels, sort: 'name', order: 'asc' }), both)
  assert.deepEqual(await idsOf({ labels, sort: 'createdAt', order: 'desc' }), [second.id, first.id])
  await failure(idsOf({ limit: 0 }).then(() => idsOf({ limit: 100000 })), 'DaytonaValidationError', 400)
  const page = await (await call('GET', `/sandbox/paginated?page=1&limit=1&labels=${encodeURIComponent(JSON.stringify(labels))}`)).json()
  assert.deepEqual([page.items.length, page.total, page.page, page.totalPages], [1, 2, 1, 2])
})

test('volumes: names, conflicts, lists', async () => {
  const name = unique('vol')
  const made = await daytona.volume.create(name)
  assert.deepEqual([made.name, made.state], [name, 'ready'])
  assert.equal((await daytona.volume.get(name)).id, made.id)
  assert.ok((await daytona.volume.list()).some((v) => v.id === made.id))
  await failure(daytona.volume.create(name), 'DaytonaConflictError', 409)
  const box = await create({ volumes: [{ volumeId: made.id, mountPath: '/data' }] })
  assert.deepEqual(box.volumes.map((v) => [v.volumeId, v.mountPath]), [[made.id, '/data']])
  await failure(daytona.volume.delete(made), 'DaytonaConflictError', 409)
  await box.delete(60, true)
  await daytona.volume.delete(made)
  await failure(daytona.volume.get(name), 'DaytonaNotFoundError', 404)
  await failure(daytona.volume.delete(made), 'DaytonaNotFoundError', 404)
  await failure(daytona.create({ volumes: [{ volumeId: made.id, mountPath: '/data' }] }), 'DaytonaNotFoundError', 404)
})

test('snapshots: pages, conflicts, sandboxes of them', async () => {
  const { box } = shared
  const name = unique('snap')
  await box.createSnapshot(name)
  await failure(box.createSnapshot(name), 'DaytonaConflictError', 409)
  const one = await daytona.snapshot.list({ sourceSandboxId: box.id })
  assert.deepEqual([one.items.map((s) => s.name), one.total, one.page, one.totalPages], [[name], 1, 1, 1])
  assert.equal(one.items[0].sourceSandboxId, box.id)
  assert.equal((await daytona.snapshot.list(1, 1)).items.length, 1)
  assert.equal((await daytona.snapshot.list(1000, 1)).items.length, 0)
  assert.equal((await daytona.snapshot.activate(name)).state, 'active')
  await failure(daytona.create({ snapshot: name, resources: { cpu: 1 } }), 'DaytonaValidationError', 400).catch((e) => {
    assert.match(e.message, /Missing expected rejection/) // the SDK does not send resources with a snapshot
  })
  await daytona.snapshot.delete(name)
  await failure(daytona.snapshot.delete(name), 'DaytonaNotFoundError', 404)
})

test('SSH: create, validate, revoke', async () => {
  const { box } = shared
  const access = await box.createSshAccess(5)
  const left = Date.parse(access.expiresAt) - Date.now()
  assert.ok(access.token && access.sandboxId === box.id && left > 4 * 60_000 && left <= 5 * 60_000, JSON.stringify(access))
  assert.match(access.sshCommand, /^ssh /)
  assert.deepEqual(await box.validateSshAccess(access.token), { valid: true, sandboxId: box.id })
  await box.revokeSshAccess(access.token)
  assert.equal((await box.validateSshAccess(access.token)).valid, false)
  assert.equal((await box.validateSshAccess('nonsense')).valid, false)
})

test('settings that change', async () => {
  const box = await create({ autoStopInterval: 0 })
  await box.setAutoPauseInterval(20)
  await box.refreshData()
  assert.deepEqual([box.autoPauseInterval, box.autoStopInterval], [20, 0])
  await box.setAutoPauseInterval(0)
  await box.setTtl(60)
  await box.refreshData()
  const left = Date.parse(box.autoDestroyAt) - Date.now()
  assert.ok(left > 59 * 60_000 && left <= 60 * 60_000, box.autoDestroyAt)
  await box.setTtl(0)
  await box.refreshData()
  assert.equal(box.autoDestroyAt, undefined)
  await box.updateNetworkSettings({ domainAllowList: 'example.com,*.example.org' })
  assert.deepEqual([box.domainAllowList, box.networkBlockAll], ['example.com,*.example.org', false])
  await box.updateNetworkSettings({ networkAllowList: '93.184.216.0/24' })
  assert.deepEqual([box.domainAllowList, box.networkAllowList], ['example.com,*.example.org', '93.184.216.0/24'])
  await box.updateNetworkSettings({ networkBlockAll: true })
  assert.equal(box.networkBlockAll, true)
  await failure(box.updateNetworkSettings({ networkAllowList: 'nonsense' }), 'DaytonaValidationError', 400)
  await failure(box.setLabels({ 'sandpit.x': '1' }), 'DaytonaValidationError', 400)
  await box.updateEnv({ LATER: 'yes' })
  assert.equal((await box.process.executeCommand('echo $LATER')).result, 'yes\n')
  assert.ok((await box.getMetricsLatest()).memTotal > 0)
  await box.stop(60, true)
  await box.waitUntilStopped()
  await box.start()
  await box.waitUntilStarted()
})

test('signing keys and their rotation', async () => {
  const { box } = shared
  await box.fs.uploadFile(Buffer.from('signed'), '/tmp/signed')
  const url = await box.downloadUrl('/tmp/signed', 60)
  assert.equal(await (await fetch(url)).text(), 'signed')
  await box.rotateSigningKey()
  assert.ok((await fetch(url)).status >= 400)
  assert.equal(await (await fetch(await box.downloadUrl('/tmp/signed', 60))).text(), 'signed')
})

test('what a request may not say', async () => {
  const bad = async (what, promise, kind = 'DaytonaValidationError', status = 400) => {
    await failure(promise, kind, status).catch((e) => assert.fail(`${what}: ${e.message}`))
  }
  await bad('a name with a slash', daytona.create({ name: 'a/b' }))
  await bad('an interval', daytona.create({ autoDeleteInterval: -2 }))
  await bad('a mount', daytona.create({ volumes: [{ volumeId: 'missing', mountPath: '/data' }] }), 'DaytonaNotFoundError', 404)
  await bad('too many entries', daytona.create({ networkAllowList: Array.from({ length: 11 }, (_, n) => `192.0.2.${n}/32`).join(',') }))
  await bad('a port', shared.box.getSignedPreviewUrl(99999))
  await bad('a life', shared.box.getSignedPreviewUrl(3000, 0))
  await bad('a recovery', shared.box.recover())
  await bad('a region', daytona.create({ snapshot: unique('none') }), 'DaytonaNotFoundError', 404)
  for (const [method, path, status] of [
    ['POST', '/sandbox/none/start', 404], ['POST', '/sandbox/none/stop', 404], ['DELETE', '/sandbox/none', 404], ['PUT', '/sandbox/none/labels', 404],
    ['POST', '/sandbox/none/autostop/1', 404], ['POST', `/sandbox/${shared.box.id}/autostop/x`, 400], ['POST', `/sandbox/${shared.box.id}/public/x`, 400],
    ['GET', '/snapshots/none', 404], ['DELETE', '/snapshots/none', 404], ['GET', '/volumes/none', 404], ['POST', '/volumes', 400], ['POST', '/snapshots', 400],
    ['GET', '/sandbox?cursor=x', 400], ['GET', '/sandbox?limit=0', 400], ['GET', '/sandbox?sort=x', 400], ['GET', '/sandbox?labels=x', 400],
  ]) {
    const res = await call(method, path, method === 'GET' ? undefined : {})
    assert.equal(res.status, status, `${method} ${path}: ${await res.text()}`)
  }
})

test('an automatic stop, and a sandbox that its time to live deletes', async () => {
  const box = await create({ labels: { kind: 'short' } })
  await box.setAutoDeleteInterval(0)
  await box.refreshData()
  assert.equal(box.autoDeleteInterval, 0)
  await box.stop()
  await until('it is gone', async () => (await call('GET', `/sandbox/${box.id}`)).status === 404)
})
