// Command bench measures sandpit beside Docker and beside the machine itself, in
// one run and on the same root file system:
//
//	go run ./bench
//	go run ./bench -quick -only exec,memory
//	go run ./bench -json run.jsonl -md docs/benchmarks.md
//
// The contestants take turns, sample by sample, so that other load on the machine affects all of them.
// Measurements for which the machine lacks a program (Docker, Python, a C compiler) are skipped, and
// the report lists them.
//
// Sandpit is used in process, through its provider and package workspace, and where it matters through
// its command line. Docker is used through its command line and where it matters through its API.
package main
