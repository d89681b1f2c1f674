package tool

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// Files that workspace_state omits: version control, build output, installed packages, images and
// databases.
var (
	excludedFiles = []string{
		".DS_Store", ".gitignore", "package-lock.json", "postcss.config.js", "postcss.config.mjs", "jsconfig.json", "components.json", "tsconfig.json",
		"tsconfig.tsbuildinfo",
	}
	excludedDirs  = []string{"node_modules", ".next", "dist", "build", ".git", outputDir}
	excludedKinds = []string{".ico", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tiff", ".webp", ".db", ".sql"}
)

const (
	// maxStateFiles limits the listed files, maxState the content of each and maxStates of all files,
	// in bytes.
	maxStateFiles = 200
	maxState      = 10_000
	maxStates     = 100_000
)

type overviewData struct {
	Path    string               `json:"workspace_path"`
	Files   map[string]fileState `json:"files"`
	Omitted int                  `json:"omitted,omitempty"` // files beyond the limit
}

type fileState struct {
	// Content is the content of a text file, only its beginning if Truncated is true.
	Content   string `json:"content"`
	Truncated bool   `json:"truncated,omitempty"`
	IsDir     bool   `json:"is_dir"`
	Size      int64  `json:"size"`
	Modified  string `json:"modified"`
}

// workspaceState returns the files at the top level of the working directory.
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
		return fmt.Sprintf("%s  %d bytes, beginning with:\n%s\n", name, f.Size, f.Content)
	}
	return fmt.Sprintf("%s  %d bytes:\n%s\n", name, f.Size, f.Content)
}

// readBeginning returns the beginning of a file, or "" if it is not text.
func (s *Session) readBeginning(ctx context.Context, f sandpit.File, limit int) (string, error) {
	if limit == 0 || f.Size == 0 {
		return "", nil
	}
	// Read more than is returned, so that a secret at the end is found before it is truncated.
	data, err := s.files.ReadRange(ctx, f.Path, 0, int64(limit+maxVariable))
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.PermissionDenied {
		return "", nil // removed meanwhile, or not readable
	}
	for range utf8.UTFMax - 1 { // the last character may be truncated
		if len(data) > 0 && !utf8.Valid(data) {
			data = data[:len(data)-1]
		}
	}
	if err != nil || !isText(data) {
		return "", err
	}
	text := s.secretSet().maskText(string(data))
	return strings.ToValidUTF8(text[:min(len(text), limit)], ""), nil
}

const (
	// pagePort is the port that serves the files of the workspace once it has a page.
	pagePort = 8080
	pageName = "index.html"
)

// Page is a port of a sandbox that a browser can open. Its URL has no lasting secret: it opens once,
// before ExpiresAt, or the port is public.
type Page struct {
	URL  string `json:"url"`
	Port int    `json:"port"`
	// ExpiresAt is when the URL expires. Zero: never, for a public port.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// PageLife is how long a link to a page can be opened.
const PageLife = 5 * time.Minute

// NewPage returns a Page. Unsupported: no URL, because the server has no previews.
func NewPage(port int, url string, expires time.Time) (Page, error) {
	if url == "" {
		return Page{}, sandpit.Errorf(sandpit.Unsupported, "this server has no previews")
	}
	return Page{URL: url, Port: port, ExpiresAt: expires}, nil
}

// showPage serves the workspace when its first page was written, and returns it with a text about it,
// or nothing if the file is not the page or there are no previews.
func (s *Session) showPage(ctx context.Context, name string) (*Page, string) {
	if s.o.Preview == nil || s.absPath(name) != path.Join(s.o.Dir, pageName) {
		return nil, ""
	}
	err := workspace.ShowFiles(ctx, s.guest, s.o.Dir, pagePort)
	taken := sandpit.CodeOf(err) == sandpit.Conflict // by a server of the agent
	if err != nil && !taken {
		return nil, fmt.Sprintf("\n(the page cannot be shown: %v)", err)
	}
	page, err := s.o.Preview(ctx, pagePort)
	if err != nil {
		return nil, fmt.Sprintf("\n(the page cannot be shown: %v)", err)
	}
	validity := ""
	if !page.ExpiresAt.IsZero() {
		validity = fmt.Sprintf(" (for one browser, until %s)", page.ExpiresAt.UTC().Format(time.TimeOnly+" MST"))
	}
	if taken {
		return &page, fmt.Sprintf("\nPort %d, which another server uses, has the URL %s%s", pagePort, page.URL, validity)
	}
	return &page, fmt.Sprintf("\nThe page has the URL %s%s\n(port %d serves the files of the workspace: do not start another server for them)", page.URL, validity, pagePort)
}
