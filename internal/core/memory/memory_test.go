package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

func TestOwnerHasItsShare(t *testing.T) {
	t.Parallel()
	b := memory.NewBudget(memory.Options{Total: 8 << 20}) // 2 MiB for each owner, 1.5 of them for requests
	first, second := b.OpenRequest("alice"), b.OpenRequest("alice")
	if err := first.Reserve(1 << 20); err != nil {
		t.Fatal(err)
	}
	err := second.Reserve(600 << 10)
	if !errors.Is(err, sandpit.Exhausted) || !strings.Contains(err.Error(), "bytes of memory for requests") || sandpit.HintOf(err) == "" {
		t.Errorf("beyond the share: %v (hint %q)", err, sandpit.HintOf(err))
	}
	if err := second.Reserve(512 << 10); err != nil {
		t.Errorf("the rest of the share: %v", err)
	}
	if err := b.OpenRequest("bob").Reserve(1 << 20); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if err := b.OpenSession("alice").Reserve(512 << 10); err != nil {
		t.Errorf("a session while requests hold all that they may: %v", err)
	}
	first.Close()
	first.Close()
	if err := second.Reserve(1 << 20); err != nil {
		t.Errorf("after the other request has ended: %v", err)
	}
	if err := first.Reserve(1); !errors.Is(err, sandpit.Canceled) {
		t.Errorf("reserve after the end: %v, want Canceled", err)
	}
	second.Close()
	if own, all := b.Used("alice"); own != 512<<10 || all != 512<<10+1<<20 {
		t.Errorf("alice holds %d, all %d", own, all)
	}
}

func TestOwnersTogetherHaveABound(t *testing.T) {
	t.Parallel()
	b := memory.NewBudget(memory.Options{Total: 8 << 20})
	granted := 0
	for i := range 10 {
		if b.OpenRequest(fmt.Sprint("owner", i)).Reserve(1536<<10) == nil {
			granted++
		}
	}
	if granted != 4 {
		t.Errorf("%d owners have their share, want 4", granted)
	}
}

func TestReturn(t *testing.T) {
	t.Parallel()
	b := memory.NewBudget(memory.Options{Total: 8 << 20})
	a := b.OpenRequest("alice")
	for range 100 {
		if err := a.Reserve(1 << 20); err != nil {
			t.Fatal(err)
		}
		a.Return(1 << 20)
	}
	if own, _ := b.Used("alice"); own > 128<<10 || a.Used() != 0 {
		t.Errorf("%d bytes are held, %d in use", own, a.Used())
	}
	a.Close()
	if own, all := b.Used("alice"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes are held at the end", own, all)
	}
}

func TestWithoutAccount(t *testing.T) {
	t.Parallel()
	var b *memory.Budget
	a := b.OpenRequest("alice")
	if err := a.Reserve(1 << 60); err != nil || memory.AccountOf(t.Context()) != nil {
		t.Errorf("no budget: %v", err)
	}
	a.Return(1)
	a.Close()
	if ctx := memory.WithAccount(t.Context(), a); memory.AccountOf(ctx) != nil {
		t.Error("no account is one")
	}
}

func TestReadAll(t *testing.T) {
	t.Parallel()
	b := memory.NewBudget(memory.Options{Total: 8 << 20})
	account := b.OpenRequest("alice")
	defer account.Close()
	ctx := memory.WithAccount(t.Context(), account)
	text := bytes.Repeat([]byte("0123456789"), 30_000)
	got, err := memory.ReadAll(ctx, iotestReader{bytes.NewReader(text)}, 1<<20, 2)
	if err != nil || !bytes.Equal(got, text) || account.Used() < 2*int64(len(text)) {
		t.Errorf("%d bytes, %v, and %d are reserved", len(got), err, account.Used())
	}
	if _, err := memory.ReadAll(ctx, bytes.NewReader(make([]byte, 1<<20)), 1<<20, 2); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("more than there is: %v, want Exhausted", err)
	}
	if got, err := memory.ReadAll(t.Context(), bytes.NewReader(text), 1<<20, 100); err != nil || !bytes.Equal(got, text) {
		t.Errorf("without an account: %d bytes, %v", len(got), err)
	}
}

// TestReadAllStopsAtTheLimit reserves no memory for what is cut anyway, and sees the end.
func TestReadAllStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	for name, size := range map[string]int{"less": most - 1, "as much": most, "more": most + 1, "much more": 8 * most} {
		account := memory.NewBudget(memory.Options{Total: 8 << 20, PerOwner: 4 << 20}).OpenRequest("alice")
		for _, ctx := range []context.Context{t.Context(), memory.WithAccount(t.Context(), account)} {
			got, err := memory.ReadAll(ctx, bytes.NewReader(make([]byte, size)), most, 2)
			if err != nil || len(got) != min(size, most) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
			body := http.MaxBytesReader(nil, io.NopCloser(bytes.NewReader(make([]byte, size))), most)
			_, err = memory.ReadAll(ctx, body, most, 0)
			if large := new(http.MaxBytesError); errors.As(err, &large) != (size > most) {
				t.Errorf("%s: a reader that refuses what is longer: %v", name, err)
			}
		}
		if used := account.Used(); used > 2*(most+1) {
			t.Errorf("%s: %d bytes are reserved", name, used)
		}
		account.Close()
	}
}

// iotestReader reads in odd portions.
type iotestReader struct{ r *bytes.Reader }

func (r iotestReader) Read(b []byte) (int, error) {
	return r.r.Read(b[:min(len(b), 1+rand.IntN(5000))])
}

func TestMetered(t *testing.T) {
	t.Parallel()
	b := memory.NewBudget(memory.Options{Total: 8 << 20})
	account := b.OpenRequest("alice")
	r := memory.Metered(bytes.NewReader(make([]byte, 1<<20)), account, 3)
	n, err := new(bytes.Buffer).ReadFrom(r)
	if !errors.Is(err, sandpit.Exhausted) || n > 512<<10 {
		t.Errorf("%d bytes, %v; want Exhausted after 512 KiB", n, err)
	}
}

func TestWindowKeepsBothEnds(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 9, 10, 11, 100, 999, 1000, 1001, 200_000, 400_000} {
		for _, limit := range []int{10, 11, 1000, 150_000, 300_000} {
			all := make([]byte, size)
			for i := range all {
				all[i] = byte(i % 251)
			}
			w := memory.NewWindow(nil, limit, 1)
			for rest := all; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(max(size/3, 1)))
				_, _ = w.Write(rest[:n])
				rest = rest[n:]
			}
			want, half := string(all), limit/2
			if omitted := size - 2*half; omitted > 0 {
				want = string(all[:half]) + fmt.Sprintf("\n[%d bytes left out]\n", omitted) + string(all[size-half:])
			}
			if got := string(w.Bytes()); got != want || w.Size() != int64(size) || w.Omitted() != int64(max(0, size-2*half)) {
				t.Fatalf("%d bytes in a window of %d: got %d, %d left out", size, limit, len(got), w.Omitted())
			}
		}
	}
}

func TestWindowStaysWithinItsAccount(t *testing.T) {
	t.Parallel()
	for _, held := range []int64{0, 1 << 20, 1500 << 10, 1536<<10 - 1, 1536 << 10} {
		b := memory.NewBudget(memory.Options{Total: 8 << 20})
		if held > 0 {
			if err := b.OpenRequest("alice").Reserve(held); err != nil {
				t.Fatal(err)
			}
		}
		w := memory.NewWindow(b.OpenRequest("alice"), 1<<20, 2)
		all := bytes.Repeat([]byte("abcdefg"), 300_000)
		for at := 0; at < len(all); at += 7000 {
			_, _ = w.Write(all[at:min(len(all), at+7000)])
		}
		kept := w.Size() - w.Omitted()
		got := w.Bytes()
		if w.Size() != int64(len(all)) || kept*2+held > 1536<<10 || !bytes.Contains(got, fmt.Appendf(nil, "\n[%d bytes left out]\n", w.Omitted())) {
			t.Errorf("%d bytes are kept while %d are held", kept, held)
		}
		if head, tail, _ := bytes.Cut(got, []byte("\n[")); !bytes.HasPrefix(all, head) || len(tail) > 100 && !bytes.HasSuffix(all, tail[len(tail)-50:]) {
			t.Errorf("held %d: what is kept is not the beginning and the end", held)
		}
	}
}

func BenchmarkWindow(b *testing.B) {
	budget := memory.NewBudget(memory.Options{Total: 1 << 30})
	line := []byte("hello\n")
	for b.Loop() {
		account := budget.OpenRequest("alice")
		_, _ = memory.NewWindow(account, 1<<20, 1).Write(line)
		account.Close()
	}
}
