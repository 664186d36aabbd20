// Runs nsqjs under the line protocol of ../clients/control.py; the argument is nsqd's host:port.
'use strict'

const readline = require('readline')
const {Reader, Writer} = require('nsqjs')

const LOOKUPD_POLL_S = 1
const BACKOFF_MAX_S = 1 // the default is 128

const [host, port] = process.argv[2].split(':')
// What ../clients/control.py calls Wrapping. Its snappy is an optional package, not installed here.
const asked = JSON.parse(process.argv[3] || '{}')
const wrapping = {
  tls: Boolean(asked.tls),
  tlsVerification: false,
  deflate: Boolean(asked.deflate),
  ...(asked.auth_secret ? {authSecret: asked.auth_secret} : {}),
}
const readers = new Map()
const held = new Map() // "consumer id" -> message
let writer = null

const emit = (event, fields = {}) => {
  process.stdout.write(`${JSON.stringify({event, ...fields})}\n`)
}

const decoded = (body) => Buffer.from(body, 'base64')

// Settles when nsqjs calls back with nsqd's answer.
const answered = (send) =>
  new Promise((resolve, reject) => {
    send((error) => (error ? reject(error) : resolve()))
  })

const connectedWriter = () => {
  if (writer === null) {
    writer = new Promise((resolve, reject) => {
      const connecting = new Writer(host, Number(port), wrapping)
      connecting.on(Writer.READY, () => resolve(connecting))
      connecting.on(Writer.ERROR, reject)
      connecting.connect()
    })
  }
  return writer
}

const take = ({consumer, message_id: id}) => {
  const key = `${consumer} ${id}`
  const message = held.get(key)
  held.delete(key)
  return message
}

const operations = {
  async publish({topic, bodies}) {
    const ready = await connectedWriter()
    await Promise.all(
      bodies.map((body) => answered((done) => ready.publish(topic, decoded(body), done)))
    )
  },

  async multi_publish({topic, bodies}) {
    const ready = await connectedWriter()
    await answered((done) => ready.publish(topic, bodies.map(decoded), done))
  },

  // nsqjs 0.13.0 wants a list of one here, unlike its own documentation.
  async deferred_publish({topic, body, defer_ms: deferMs}) {
    const ready = await connectedWriter()
    await answered((done) => ready.deferPublish(topic, [decoded(body)], deferMs, done))
  },

  async consume({consumer, subscription}) {
    const lookupds = subscription.lookupd_http_addresses
    const reader = new Reader(subscription.topic, subscription.channel, {
      ...(lookupds.length
        ? {lookupdHTTPAddresses: lookupds, lookupdPollInterval: LOOKUPD_POLL_S}
        : {nsqdTCPAddresses: [`${host}:${port}`]}),
      maxInFlight: subscription.max_in_flight,
      maxBackoffDuration: BACKOFF_MAX_S,
      messageTimeout: subscription.msg_timeout_ms,
      heartbeatInterval: subscription.heartbeat_interval_s,
      ...wrapping,
      deflate: wrapping.deflate || subscription.deflate,
    })
    readers.set(consumer, reader)
    reader.on(Reader.ERROR, (error) => emit('error', {consumer, text: String(error)}))
    reader.on(Reader.MESSAGE, (message) => {
      emit('message', {
        consumer,
        id: message.id.toString(),
        attempts: message.attempts,
        body: message.body.toString('base64'),
      })
      if (subscription.auto_finish) {
        message.finish()
      } else {
        held.set(`${consumer} ${message.id}`, message)
      }
    })
    // It is ready only if it finds a single nsqd at first.
    const first = lookupds.length ? Reader.NSQD_CONNECTED : Reader.READY
    const subscribed = new Promise((resolve) => reader.on(first, resolve))
    reader.connect()
    await subscribed
  },

  async finish(target) {
    take(target).finish()
  },

  async requeue(target) {
    take(target).requeue(target.delay_ms)
  },

  async touch({consumer, message_id: id}) {
    held.get(`${consumer} ${id}`).touch()
  },

  async close({consumer}) {
    const reader = readers.get(consumer)
    readers.delete(consumer)
    const closed = new Promise((resolve) => reader.on(Reader.NSQD_CLOSED, resolve))
    reader.close()
    await closed
  },
}

const serve = async () => {
  for await (const line of readline.createInterface({input: process.stdin})) {
    const {op, ...fields} = JSON.parse(line)
    try {
      await operations[op](fields)
      emit('done')
    } catch (error) {
      emit('failed', {reason: String(error.stack || error)})
    }
  }
  process.exit(0)
}

serve()
