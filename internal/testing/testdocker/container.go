package testdocker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// Containers returns the names of the engine's containers with a label, which is a name
// or "name=value".
func Containers(tb testing.TB, label string) []string {
	tb.Helper()
	list, err := Client(tb).ContainerList(tb.Context(), client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", label),
	})
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, c.Names...)
	}
	slices.Sort(names)
	return names
}

// ExpectNone waits until the engine has no container with a label.
func ExpectNone(tb testing.TB, label string) {
	tb.Helper()
	const long = 2 * time.Minute
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	for {
		left := Containers(tb, label)
		if len(left) == 0 {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			tb.Fatalf("containers are left: %q", left)
		}
	}
}

// Kill sends a signal to the first process of a container.
func Kill(tb testing.TB, container, signal string) {
	tb.Helper()
	if _, err := Client(tb).ContainerKill(tb.Context(), container, client.ContainerKillOptions{Signal: signal}); err != nil {
		tb.Fatal(err)
	}
}

// Remove removes a container in any state.
func Remove(tb testing.TB, container string) {
	tb.Helper()
	if _, err := Client(tb).ContainerRemove(tb.Context(), container, client.ContainerRemoveOptions{Force: true}); err != nil {
		tb.Fatal(err)
	}
}

// Describe returns all descriptions of the engine's containers and images.
func Describe(tb testing.TB) string {
	tb.Helper()
	c := Client(tb)
	containers, err := c.ContainerList(tb.Context(), client.ContainerListOptions{All: true})
	if err != nil || len(containers.Items) == 0 {
		tb.Fatalf("containers: %v, %v", containers, err)
	}
	var text strings.Builder
	for _, one := range containers.Items {
		if about, err := c.ContainerInspect(tb.Context(), one.ID, client.ContainerInspectOptions{}); err == nil { // otherwise it was removed meanwhile
			text.Write(about.Raw)
		}
	}
	images, err := c.ImageList(tb.Context(), client.ImageListOptions{All: true})
	if err != nil {
		tb.Fatal(err)
	}
	fmt.Fprintf(&text, "%+v", images)
	return text.String()
}

// DataDir returns the directory of all files of an engine that the tests started.
func DataDir(tb testing.TB) (dir string, private bool) {
	tb.Helper()
	dir, private = strings.CutSuffix(strings.TrimPrefix(Host(tb), "unix://"), "/sock")
	return filepath.Join(dir, "data"), private && os.Getenv(HostVariable) == ""
}
