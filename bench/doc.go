// Command bench measures sandpit beside Docker and beside the machine itself, in
// one run and on the same root file system:
//
//	go run ./bench
//	go run ./bench -quick -only exec,memory
//	go run ./bench -json run.jsonl -md docs/benchmarks.md
//
// The contestants take turns, sample by sample, so that whatever else the
// machine does hits all of them. What a machine lacks (Docker, Python, a C
// compiler) is left out, and the report says so.
//
// Sandpit is used as a program would: in process, by its provider and package
// workspace; and, where it matters, by its command line. Docker is used by its
// command line, as people do, and, where it matters, by its API.
package main
