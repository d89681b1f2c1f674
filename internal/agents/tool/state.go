package tool

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// What is no work of an agent's: version control, what is built and installed, pictures and databases.
var (
	excludedFiles = []string{
		".DS_Store", ".gitignore", "package-lock.json", "postcss.config.js", "postcss.config.mjs", "jsconfig.json", "components.json", "tsconfig.json",
		"tsconfig.tsbuildinfo",
	}
	excludedDirs  = []string{"node_modules", ".next", "dist", "build", ".git", outputDir}
	excludedKinds = []string{".ico", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tiff", ".webp", ".db", ".sql"}
)

const (
	// maxStateFiles is how many files of the workspace are told of, maxState how much of each and maxStates of all, in bytes.
	maxStateFiles = 200
	maxState      = 10_000
	maxStates     = 100_000
)

type overviewData struct {
	Path    string               `json:"workspace_path"`
	Files   map[string]fileState `json:"files"`
	Omitted int                  `json:"omitted,omitempty"` // files beyond the bound
}

type fileState struct {
	// Content is that of a text, its beginning if Truncated is true.
	Content   string `json:"content"`
	Truncated bool   `json:"truncated,omitempty"`
	IsDir     bool   `json:"is_dir"`
	Size      int64  `json:"size"`
	Modified  string `json:"modified"`
}

// workspaceState tells what lies at the top of the working directory.
func workspaceState(ctx context.Context, s *Session, _ nothing) (Result, error) {
	found, err := s.files.ListDir(ctx, s.o.Dir, 1)
	if err != nil {
		return Result{}, err
	}
	data := overviewData{Path: s.o.Dir, Files: map[string]fileState{}}
	var b strings.Builder
	room := maxStates
	for _, f := range found {
		name := path.Base(f.Path)
		if isExcluded(name, f.Mode.IsDir()) {
			continue
		}
		if len(data.Files) == maxStateFiles {
			data.Omitted++
			continue
		}
		state := fileState{IsDir: f.Mode.IsDir(), Size: f.Size, Modified: f.ModifiedAt.UTC().Format("2006-01-02T15:04:05Z")}
		if f.Mode.IsRegular() {
			limit := min(maxState, room)
			if state.Content, err = s.readBeginning(ctx, f, limit); err != nil {
				return Result{}, err
			}
			room -= len(state.Content)
			state.Truncated = state.Content != "" && f.Size > int64(limit)
		}
		data.Files[name] = state
		b.WriteString(state.toText(name))
	}
	if len(data.Files) == 0 {
		b.WriteString(path.Base(s.o.Dir) + " is empty")
	}
	if data.Omitted > 0 {
		fmt.Fprintf(&b, "and %d more\n", data.Omitted)
	}
	return Result{Text: b.String(), Data: data}, nil
}

func isExcluded(name string, dir bool) bool {
	if dir {
		return slices.Contains(excludedDirs, name)
	}
	return slices.Contains(excludedFiles, name) || slices.Contains(excludedKinds, strings.ToLower(path.Ext(name)))
}

func (f fileState) toText(name string) string {
	switch {
	case f.IsDir:
		return name + "/\n"
	case f.Content == "":
		return fmt.Sprintf("%s  %d bytes\n", name, f.Size)
	case f.Truncated:
		return fmt.Sprintf("%s  %d bytes, which begin:\n%s\n", name, f.Size, f.Content)
	}
	return fmt.Sprintf("%s  %d bytes:\n%s\n", name, f.Size, f.Content)
}

// readBeginning is the beginning of a file, "" if that is no text.
func (s *Session) readBeginning(ctx context.Context, f sandpit.File, limit int) (string, error) {
	if limit == 0 || f.Size == 0 {
		return "", nil
	}
	// More than is told, so that no secret is cut before it is found.
	data, err := s.files.ReadRange(ctx, f.Path, 0, int64(limit+maxVariable))
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.PermissionDenied {
		return "", nil // it has gone, or is somebody else's
	}
	for range utf8.UTFMax - 1 { // the last letter may be cut
		if len(data) > 0 && !utf8.Valid(data) {
			data = data[:len(data)-1]
		}
	}
	if err != nil || !isText(data) {
		return "", err
	}
	text := s.maskSecrets(string(data))
	return strings.ToValidUTF8(text[:min(len(text), limit)], ""), nil
}

const (
	// pagePort is where the files of the workspace are seen once it has a page.
	pagePort = 8080
	pageName = "index.html"
)

// showPage tells where people see a page that was written, if it is the first one of the workspace and anybody can see it.
func (s *Session) showPage(ctx context.Context, name string) string {
	if s.o.Preview == nil || s.absPath(name) != path.Join(s.o.Dir, pageName) {
		return ""
	}
	err := workspace.ShowFiles(ctx, s.guest, s.o.Dir, pagePort)
	taken := sandpit.CodeOf(err) == sandpit.Conflict // by a server of the agent's own
	if err != nil && !taken {
		return fmt.Sprintf("\n(the page cannot be shown: %v)", err)
	}
	url, err := s.o.Preview(ctx, pagePort)
	switch {
	case err != nil:
		return fmt.Sprintf("\n(the page cannot be shown: %v)", err)
	case taken:
		return fmt.Sprintf("\nPort %d, where a server runs already, is seen at %s", pagePort, url)
	}
	return fmt.Sprintf("\nIt is seen at %s\n(the files of the workspace are served at port %d: start no other server for them)", url, pagePort)
}
