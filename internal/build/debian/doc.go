// Package debian makes root file systems of Debian's packages, without a registry and
// without rights on the machine: it asks a mirror what there is, chooses packages with
// all they need, fetches them, and returns an archive of the files to begin with. What
// is left to do, the packages' own scripts, has to run in a sandbox: see Configure.
//
// A mirror is hostile. What it says about a release counts only with a signature of
// Debian's archive, for the release that was asked for, not after its end and not if an
// older one is shown than before; everything else has a digest and a size in what is
// signed. Encryption is not needed for that.
package debian
