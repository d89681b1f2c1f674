// Does with Daytona's SDK what it reads, a word a line, and prints how many milliseconds that
// took: in one process, so that node's own start is not measured.
import { createInterface } from 'node:readline'
import { Daytona } from '@daytonaio/sdk'

const daytona = new Daytona()
const create = () => daytona.create()
const large = Buffer.alloc(10_000_000, 97)
let box

async function timed(act) {
  const begin = performance.now()
  await act()
  return performance.now() - begin
}

async function runTrue(sandbox) {
  const { exitCode } = await sandbox.process.executeCommand('true')
  if (exitCode !== 0) throw new Error(`true: exit code ${exitCode}`)
}

const acts = {
  async life() {
    let made
    const took = await timed(async () => {
      made = await create()
      await runTrue(made)
    })
    await made.delete()
    return took
  },
  async open() {
    return timed(async () => {
      box = await create()
    })
  },
  run: () => timed(() => runTrue(box)),
  write: () => timed(() => box.fs.uploadFile(large, '/tmp/large')),
  async read() {
    let got
    const took = await timed(async () => {
      got = await box.fs.downloadFile('/tmp/large')
    })
    if (got.length !== large.length) throw new Error(`read ${got.length} bytes`)
    return took
  },
  async restart() {
    await box.stop()
    return timed(() => box.start())
  },
  close: () => timed(() => box.delete()),
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
await daytona[Symbol.asyncDispose]()
