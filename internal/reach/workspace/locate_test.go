package workspace_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// answering is a guest whose own program answers what a test says for each directory.
type answering struct {
	sandpit.Guest

	answers map[string]string // "" for a directory that the user cannot enter
	made    *[]string
}

func (a answering) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	answer := a.answers[cmd.Dir]
	if answer == "" {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "chdir %s: permission denied", cmd.Dir)
	}
	cmd.Args, cmd.Dir, cmd.User = []string{"/bin/sh", "-c", `cat >/dev/null; printf '%s' "$ANSWER"`}, "/", ""
	cmd.Env = map[string]string{"ANSWER": answer}
	return a.Guest.Start(ctx, cmd)
}

func (a answering) MakeDir(_ context.Context, _, dir string) error {
	*a.made = append(*a.made, dir)
	return sandpit.Errorf(sandpit.AlreadyExists, "%s is there", dir)
}

func TestLocate(t *testing.T) {
	t.Parallel()
	g := newGuest(t, t.TempDir())
	for name, tc := range map[string]struct {
		asked   string
		answers map[string]string
		want    workspace.Place
		code    sandpit.Code
		made    []string
	}{
		"the sandbox's": {
			answers: map[string]string{"": `{"value":{"dir":"/app","state":"/app"}}`},
			want:    workspace.Place{Dir: "/app", State: "/app"},
		},
		"the home of each user": {
			asked:   sandpit.HomeDir,
			answers: map[string]string{"": `{"value":{"dir":"/home/a","state":"/home/a"}}`},
			want:    workspace.Place{Dir: "/home/a", State: "/home/a"},
		},
		"one to read": {
			answers: map[string]string{"": `{"value":{"dir":"/app","state":"/home/a"}}`},
			want:    workspace.Place{Dir: "/app", State: "/home/a"},
		},
		"one that cannot be entered": {
			answers: map[string]string{"~": `{"value":{"dir":"/home/a","state":"/home/a"}}`},
			want:    workspace.Place{Dir: "/home/a", State: "/home/a"},
		},
		"nor the home": {
			answers: map[string]string{"/": `{"value":{"dir":"/","state":"/tmp"}}`}, want: workspace.Place{Dir: "/", State: "/tmp"},
		},
		"nothing": {answers: map[string]string{}, code: sandpit.PermissionDenied},
		"one that was asked for": {
			asked: "/mine", answers: map[string]string{"/mine": `{"value":{"dir":"/real","state":"/real"}}`},
			want: workspace.Place{Dir: "/mine", State: "/real"}, made: []string{"/mine"},
		},
		"asked for and closed":       {asked: "/mine", answers: map[string]string{}, code: sandpit.PermissionDenied, made: []string{"/mine"}},
		"a relative one":             {asked: "mine", code: sandpit.Invalid},
		"an earlier guest":           {answers: map[string]string{"": `{"value":{"uid":0}}`}, want: workspace.Place{Dir: "/workspace", State: "/workspace"}},
		"a relative answer":          {answers: map[string]string{"": `{"value":{"dir":"app"}}`}, code: sandpit.Internal},
		"an answer that leads up":    {answers: map[string]string{"": `{"value":{"dir":"/app/../etc"}}`}, code: sandpit.Internal},
		"a state that leads up":      {answers: map[string]string{"": `{"value":{"dir":"/app","state":"/app/.."}}`}, code: sandpit.Internal},
		"an answer that is too long": {answers: map[string]string{"": `{"value":{"dir":"/` + strings.Repeat("a", 5000) + `"}}`}, code: sandpit.Internal},
		"no answer":                  {answers: map[string]string{"": `nonsense`}, code: sandpit.Internal},
	} {
		made := []string(nil)
		got, err := workspace.Locate(t.Context(), answering{g, tc.answers, &made}, "", tc.asked)
		if sandpit.CodeOf(err) != tc.code || tc.code == "" && err != nil {
			t.Errorf("%s: %v, want the code %q", name, err, tc.code)
			continue
		}
		if tc.code == "" {
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		if diff := cmp.Diff(tc.made, made); diff != "" {
			t.Errorf("%s: made (-want +got):\n%s", name, diff)
		}
	}
}

// TestRemovedDirectory starts a program after the working directory was removed.
func TestRemovedDirectory(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "deep", "work")
	g := newGuest(t, dir)
	if err := os.RemoveAll(filepath.Join(root, "deep")); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := workspace.Execute(t.Context(), g, sandpit.Command{Args: []string{"/bin/pwd"}, Stdout: &out}, nil); err != nil || out.String() != dir+"\n" {
		t.Errorf("works in %q, %v; want %s", out.String(), err, dir)
	}
}
