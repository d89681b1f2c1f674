// Package docker makes sandboxes that are containers of a Docker engine, or of
// Podman's service that speaks the same: on this machine or another.
//
// The guest comes from a volume, made once for each engine and guest, into any
// image; it needs no program of the image. It is the container's first process,
// and package tether carries everything over its standard input and output. So it
// works without a network, and no call pays for a docker exec.
//
// What must be known later and an engine cannot change, such as whose a claimed
// sandbox is, lies in a record below Options.StateDir, readable by its user alone.
// Sandboxes outlive the Provider. A container shares the machine's kernel: that is
// weaker than provider/gvisor, unless Options.Runtime is one that does not.
package docker
