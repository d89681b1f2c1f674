package api_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// dial is a clock that tests set.
type dialClock struct {
	clock.System

	mu  sync.Mutex
	now time.Time
}

func (c *dialClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *dialClock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// TestKeyLife follows a key from its making to its end.
func TestKeyLife(t *testing.T) {
	t.Parallel()
	c := &dialClock{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	s := openStore(t)
	keys := api.NewKeys(s, c, nil)
	made, secret, err := keys.Create(t.Context(), api.NewKey{Name: "n", Owner: "ann", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(fmt.Sprintf("%+v", made), secret) {
		t.Error("the secret is kept")
	}
	used := func() time.Time {
		t.Helper()
		got, err := keys.Check(t.Context(), secret)
		if err != nil || got.ID != made.ID || got.Owner != "ann" {
			t.Fatalf("%+v, %v", got, err)
		}
		list, err := keys.List(t.Context(), "", 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0].LastUsedAt
	}
	if got := used(); !got.Equal(c.Now()) {
		t.Errorf("used %v", got)
	}
	first := c.Now()
	c.forward(59 * time.Second)
	if got := used(); !got.Equal(first) {
		t.Errorf("it is written again after less than a minute: %v", got)
	}
	c.forward(time.Second)
	if got := used(); !got.Equal(c.Now()) {
		t.Errorf("it is not written after a minute: %v", got)
	}
	// Another program that has the same state knows the key, too.
	if _, err := api.NewKeys(s, c, nil).Check(t.Context(), secret); err != nil {
		t.Error(err)
	}
	c.forward(time.Hour)
	for _, k := range []*api.Keys{keys, api.NewKeys(s, c, nil)} {
		if _, err := k.Check(t.Context(), secret); !errors.Is(err, sandpit.Unauthenticated) {
			t.Errorf("when it has expired: %v", err)
		}
	}
}

// TestBadKeys creates invalid keys and sends them.
func TestBadKeys(t *testing.T) {
	t.Parallel()
	keys := api.NewKeys(openStore(t), clock.System{}, nil)
	for name, n := range map[string]api.NewKey{
		"no owner": {}, "manager": {Owner: "manager"}, "space": {Owner: "a b"}, "socket": {Owner: "unix socket"}, "long": {Owner: strings.Repeat("a", 101)},
		"dot": {Owner: ".x"}, "negative": {Owner: "a", TTL: -1}, "long name": {Owner: "a", Name: strings.Repeat("x", 1000)},
		"bytes": {Owner: "a", Name: "\xff"}, "far": {Owner: "a", TTL: 1 << 62, Name: "x"}, "line": {Owner: "a\n"},
	} {
		_, secret, err := keys.Create(t.Context(), n)
		if name == "far" {
			if err != nil { // 146 years are allowed
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, sandpit.Invalid) || secret != "" {
			t.Errorf("%s: %q, %v", name, secret, err)
		}
	}
	for _, secret := range []string{"", "e2b_", "e2b_" + strings.Repeat("g", 40), "E2B_" + strings.Repeat("0", 40), "e2b_" + strings.Repeat("0", 41), strings.Repeat("x", 1<<20), "e2b_" + strings.Repeat("0", 40)} {
		if _, err := keys.Check(t.Context(), secret); !errors.Is(err, sandpit.Unauthenticated) {
			t.Errorf("%.50q: %v", secret, err)
		}
	}
	if err := keys.Delete(t.Context(), "x"); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("delete nothing: %v", err)
	}
}

// TestDeletedKeys takes keys away while they are used: when Delete has returned, no
// key is good any more, whatever was just looking it up.
func TestDeletedKeys(t *testing.T) {
	t.Parallel()
	keys := api.NewKeys(openStore(t), clock.System{}, nil)
	for range 20 {
		made, secret, err := keys.Create(t.Context(), api.NewKey{Owner: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		var users sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			users.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if _, err := keys.Check(t.Context(), secret); err != nil && !errors.Is(err, sandpit.Unauthenticated) {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		if err := keys.Delete(t.Context(), made.ID); err != nil {
			t.Error(err)
		}
		close(stop)
		users.Wait()
		if _, err := keys.Check(t.Context(), secret); !errors.Is(err, sandpit.Unauthenticated) {
			t.Fatalf("a deleted key is good still: %v", err)
		}
	}
}

// TestManyKeys uses more keys than are remembered.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	keys := api.NewKeys(openStore(t), clock.System{}, nil)
	secrets := make([]string, 1100)
	for i := range secrets {
		var err error
		if _, secrets[i], err = keys.Create(t.Context(), api.NewKey{Owner: fmt.Sprint("owner", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for i, secret := range secrets {
			if k, err := keys.Check(t.Context(), secret); err != nil || k.Owner != fmt.Sprint("owner", i) {
				t.Fatalf("key %d: %+v, %v", i, k, err)
			}
		}
	}
}

// TestLimiter goes by a clock of its own.
func TestLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := api.NewLimiter(1, 2)
		take := func(name string, want bool) {
			t.Helper()
			if wait, ok := l.Allow(name); ok != want || !ok && (wait <= 0 || wait > time.Second) {
				t.Errorf("%s: %v, %v, want %v", name, wait, ok, want)
			}
		}
		take("a", true)
		take("a", true)
		take("a", false)
		take("b", true)
		time.Sleep(time.Second)
		take("a", true)
		take("a", false)
		if _, spent := l.Spent("a"); !spent {
			t.Error("there is more, it says")
		}
		// A flood of names is bounded, and those beyond share.
		for i := range 3 * api.MaxLimited {
			l.Allow(fmt.Sprint("flood", i))
		}
		if n := l.Size(); n > api.MaxLimited {
			t.Errorf("%d names are kept", n)
		}
		take("another", false)
		take("a", false) // it is known still
		time.Sleep(time.Hour)
		take("another", true)
		if n := l.Size(); n > 2 {
			t.Errorf("%d names are kept after an hour", n)
		}
	})
}
