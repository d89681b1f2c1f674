// Does with E2B's SDK what it reads, a word a line, and prints how many milliseconds that
// took: in one process, so that node's own start is not measured.
import { createInterface } from 'node:readline'
import { Sandbox } from 'e2b'

const create = () => Sandbox.create('base', { timeoutMs: 600_000 })
const large = new Uint8Array(10_000_000).fill(97).buffer
let box

async function timed(act) {
  const begin = performance.now()
  await act()
  return performance.now() - begin
}

const acts = {
  async life() {
    let made
    const took = await timed(async () => {
      made = await create()
      await made.commands.run('true')
    })
    await made.kill()
    return took
  },
  async open() {
    return timed(async () => {
      box = await create()
    })
  },
  run: () => timed(() => box.commands.run('true')),
  write: () => timed(() => box.files.write('/tmp/large', large)),
  async read() {
    let got
    const took = await timed(async () => {
      got = await box.files.read('/tmp/large', { format: 'bytes' })
    })
    if (got.length !== large.byteLength) throw new Error(`read ${got.length} bytes`)
    return took
  },
  async hundred() {
    let made = []
    const took = await timed(async () => {
      made = await Promise.allSettled(Array.from({ length: 100 }, create))
    })
    await Promise.all(made.map((m) => m.value?.kill()))
    const failed = made.find((m) => m.status === 'rejected')
    if (failed) throw failed.reason
    return took
  },
  close: () => timed(() => box.kill()),
}

for await (const word of createInterface({ input: process.stdin })) {
  let out
  try {
    out = { ms: await acts[word]() }
  } catch (e) {
    out = { error: `${e?.stack ?? e}` }
  }
  process.stdout.write(JSON.stringify(out) + '\n')
}
