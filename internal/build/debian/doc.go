// Package debian builds root file systems from Debian's packages, without a registry and
// without privileges on the machine: it reads the list of packages from a mirror, chooses
// packages with their dependencies, fetches them, and returns an archive of the initial
// files. The packages' scripts must then run in a sandbox: see Configure.
//
// A mirror is untrusted. A release is accepted only if Debian's archive has signed it, it is
// the requested release, it has not expired, and it is not older than one seen before. All
// other files have a digest and a size in the signed data, so encryption is not needed.
package debian
