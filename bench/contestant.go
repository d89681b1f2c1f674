package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// contestant is a way to run programs. Missing functions are nil.
type contestant struct {
	name string
	// life creates a box, has it print a word, and removes it.
	life func(ctx context.Context) (life, error)
	// start creates a box that exists until it is destroyed.
	start func(ctx context.Context) (box, error)
	// runsOnly is set if its boxes cannot copy and are not a basis of comparison.
	runsOnly bool
}

// life is how long the parts of a short life took, each from the start.
type life struct {
	first time.Duration // until the first output
	whole time.Duration // until the box was removed completely
}

// box is one place to run programs in.
type box interface {
	// Run runs a program to its end. Another exit code than 0 is an error.
	Run(ctx context.Context, args ...string) error
	// CopyIn copies a file or directory of the machine to an unused name.
	CopyIn(ctx context.Context, source, target string) error
	// CopyOut does the opposite.
	CopyOut(ctx context.Context, source, target string) error
	Destroy(ctx context.Context) error
}

// asBox converts a function that returns one kind of box.
func asBox[B box](start func(context.Context) (B, error)) func(context.Context) (box, error) {
	return func(ctx context.Context) (box, error) {
		b, err := start(ctx)
		if err != nil {
			return nil, err // not a box with a nil value
		}
		return b, nil
	}
}

// word is the output of a new box.
const word = "first"

var errRunsOnly = errors.New("this contestant only runs programs")

// run runs a program of the machine. Its output becomes the error's.
func run(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, lastWords(out.String()))
	}
	return nil
}

// lastWords returns the end of an output, on one line.
func lastWords(s string) string {
	const most = 300
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}

// lifeOf measures a program of the machine that creates a box, prints the word and removes the box.
func lifeOf(cmd *exec.Cmd) (life, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return life{}, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return life{}, err
	}
	buf := make([]byte, len(word))
	_, readErr := out.Read(buf)
	l := life{first: time.Since(start)}
	err = cmd.Wait()
	l.whole = time.Since(start)
	if err != nil || readErr != nil || string(buf) != word {
		return l, fmt.Errorf("%s: %w: %q %s", cmd.Args[0], errors.Join(err, readErr), buf, lastWords(stderr.String()))
	}
	return l, nil
}
