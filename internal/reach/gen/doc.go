// Package gen holds generated code and nothing by hand: the envd protocol, made
// from the files in proto/.
package gen

//go:generate go tool -modfile=../../../tools/gen/go.mod buf generate --template buf.gen.yaml ../../../proto
