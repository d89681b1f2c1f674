// Has names below localhost be this machine, as systemd-resolved and browsers do.
import dns from 'node:dns'

const lookup = dns.lookup
dns.lookup = (name, opts, done) => lookup(name.endsWith('.localhost') ? '127.0.0.1' : name, opts, done)
