package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The number of typists and sandboxes, and what each typist does.
const (
	shellBoxes = 10
	shellsEach = 10
	shellLines = 10
	shellPause = time.Second // between two lines
)

// shells measures interactive shells that are used at the same time: the time from typing a line to
// its output.
func (k *kit) shells(ctx context.Context, s *served) (err error) {
	if !k.o.wants(nameShells) {
		return nil
	}
	boxes, each, lines := shellBoxes, shellsEach, shellLines
	if k.o.quick {
		boxes, each, lines = 1, 3, 2
	}
	var all []*servedBox
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		for _, b := range all {
			err = errors.Join(err, b.Destroy(clean))
		}
	}()
	for range boxes {
		b, err := s.start(ctx)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	if err := s.full(ctx); err != nil {
		return err
	}
	var (
		mu    sync.Mutex
		took  []float64
		errs  []error
		group sync.WaitGroup
	)
	number := boxes * each
	var opening sync.WaitGroup // typing starts when all shells are open
	opening.Add(number)
	for i := range number {
		group.Go(func() {
			opened := sync.OnceFunc(opening.Done)
			defer opened()
			t := typist{lines: lines, first: shellPause * time.Duration(i) / time.Duration(number), start: func() { opened(); opening.Wait() }}
			times, err := t.typeLines(ctx, all[i%boxes].box.Guest())
			mu.Lock()
			defer mu.Unlock()
			took = append(took, times...)
			errs = append(errs, err)
		})
	}
	group.Wait()
	k.report.add(result{
		Metric: fmt.Sprintf(metricLine, number), Contestant: bySandpitHTTP, Unit: unitMS, stats: summarize(took),
	})
	return errors.Join(errs...)
}

// typist types lines into a shell.
type typist struct {
	lines int
	first time.Duration // until the first line
	start func()        // called when the shell is ready; waits for the others
}

// typeLines opens a shell on a terminal, types lines and waits for the output of each.
func (t typist) typeLines(ctx context.Context, g sandpit.Guest) ([]float64, error) {
	input, keyboard := io.Pipe()
	screen := &screen{changed: make(chan struct{}, 1)}
	p, err := g.Start(ctx, sandpit.Command{
		Args: []string{"sh"}, Env: map[string]string{"PS1": "$ "}, Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24},
		Stdin: input, Stdout: screen,
	})
	if err != nil {
		return nil, err
	}
	defer keyboard.Close()
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		_ = p.Signal(clean, sandpit.SIGKILL) // fails if it has ended; its sandbox ends anyway
		_ = keyboard.Close()
		_, _ = p.Wait(clean)
	}()
	if err := screen.await(ctx, []byte("$ ")); err != nil {
		return nil, err
	}
	t.start()
	if err := pauseFor(ctx, t.first); err != nil {
		return nil, err
	}
	var times []float64
	for i := range t.lines {
		// The output differs from the echo of the line itself.
		line, answer := fmt.Sprintf("echo $((%d+%d))x\n", i, 7000), fmt.Appendf(nil, "%dx", i+7000)
		begin := time.Now()
		if _, err := io.WriteString(keyboard, line); err != nil {
			return times, err
		}
		if err := screen.await(ctx, answer); err != nil {
			return times, err
		}
		times = append(times, ms(time.Since(begin)))
		if err := pauseFor(ctx, shellPause); err != nil {
			return times, err
		}
	}
	return times, nil
}

// screen is the output of a terminal.
type screen struct {
	mu      sync.Mutex
	text    []byte
	changed chan struct{} // holds one
}

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p...)
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

// await waits until text is shown, and drops earlier output.
func (s *screen) await(ctx context.Context, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		s.mu.Lock()
		_, rest, ok := bytes.Cut(s.text, text)
		if ok {
			s.text = bytes.Clone(rest)
		}
		shown := string(s.text)
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %q, the terminal shows %q: %w", text, lastWords(shown), ctx.Err())
		}
	}
}
