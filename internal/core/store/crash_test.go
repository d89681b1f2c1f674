package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// writeForever makes changes of every kind and says what it has been told is kept.
func writeForever(ctx context.Context, dir string) error {
	s, err := store.Open(ctx, dir, store.Options{})
	if err != nil {
		return err
	}
	fmt.Println("open")
	q := s.Queue()
	for {
		r, err := s.Sandboxes().InsertSandbox(ctx, row())
		if err != nil {
			return err
		}
		fmt.Println("row", r.ID, 1)
		r.Reason = strings.Repeat("changed ", 100)
		if r, err = s.Sandboxes().UpdateSandbox(ctx, r); err != nil {
			return err
		}
		fmt.Println("row", r.ID, r.Version)
		m, err := q.Schedule(ctx, queue.Message{Topic: "crash", Sandbox: r.ID, Kind: "idle", Due: begin})
		if err != nil {
			return err
		}
		fmt.Println("message", m.ID, 0)
		if err := s.Events().AppendEvents(ctx, store.Event{Action: "a", Sandbox: r.ID}, store.Event{Action: "b", Sandbox: r.ID}); err != nil {
			return err
		}
		fmt.Println("events", r.ID, 2)
	}
}

// TestKilled kills a process that writes, many times, and looks whether everything
// is there that it was told is kept.
func TestKilled(t *testing.T) {
	t.Parallel()
	const kills = 32
	dir := t.TempDir()
	kept := make(map[string]int)
	for i := range kills {
		other, out := play(t, "write", dir)
		// Some are killed while they open the file.
		acks := rand.IntN(60)
		if i%6 == 0 {
			acks = 0
			time.Sleep(rand.N(80 * time.Millisecond))
		}
		read(t, out, acks, kept)
		if err := other.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		read(t, out, -1, kept)
		_ = other.Wait() // it was killed
		checkKept(t, dir, kept)
	}
	if len(kept) < kills {
		t.Errorf("only %d things were written between %d kills", len(kept), kills)
	}
	t.Logf("%d kills, %d things kept", kills, len(kept))
}

// read notes n lines, all if n is negative. A line without an end was not said.
func read(t *testing.T, out *bufio.Reader, n int, kept map[string]int) {
	t.Helper()
	for ; n != 0; n-- {
		line, err := out.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) || n > 0 {
				t.Fatalf("the process that writes: %q, %v", line, err)
			}
			return
		}
		var kind, id string
		var number int
		if _, err := fmt.Sscan(line, &kind, &id, &number); err == nil {
			kept[kind+" "+id] = number
		}
	}
}

func checkKept(t *testing.T, dir string, kept map[string]int) {
	t.Helper()
	s, err := store.Open(t.Context(), dir, store.Options{}) // checks the file
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	rows, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		found["row "+string(r.ID)] = int(r.Version)
	}
	for after := ""; ; {
		list, err := s.Queue().List(t.Context(), queue.Filter{After: after})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, m := range list {
			found["message "+m.ID] = m.Attempts
			after = m.ID
		}
	}
	for after := int64(0); ; {
		list, err := s.Events().ListEvents(t.Context(), store.EventFilter{After: after, Limit: store.MaxEvents})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, e := range list {
			found["events "+string(e.Sandbox)]++
			after = e.Seq
		}
	}
	for what, number := range kept {
		if got, ok := found[what]; !ok || got < number {
			t.Fatalf("%s: %d, there: %v; want at least %d", what, got, ok, number)
		}
	}
	for what, number := range found {
		if strings.HasPrefix(what, "events ") && number != 2 {
			t.Fatalf("%s: %d of 2 events of one call", what, number)
		}
	}
}
