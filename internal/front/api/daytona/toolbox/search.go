package toolbox

import (
	"context"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

// maxFound is how many matches a search returns, and in how many files one call replaces a text.
const maxFound = 10_000

// maxReplaced bounds a file in which text is replaced, in bytes, and replaceCost is the memory
// that each of its bytes takes: as bytes, and as text twice. The result counts besides.
const (
	maxReplaced = 32 << 20
	replaceCost = 3
)

// match is a line that matches a pattern.
type match struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Content string `json:"content"`
}

// findInFiles returns the lines that match a pattern.
func (fileHandlers) findInFiles(ctx context.Context, c *call) error {
	pattern := c.r.URL.Query().Get("pattern")
	if pattern == "" {
		return sandpit.Errorf(sandpit.Invalid, "pattern is missing")
	}
	p, found, err := c.runSearch(ctx, applet.SearchRequest{Pattern: toExpression(pattern)})
	if err != nil {
		return err
	}
	list := make([]match, 0, len(found))
	for _, m := range found {
		list = append(list, match{File: path.Join(p, m.Path), Line: m.Line, Content: m.Text})
	}
	return c.writeJSON(http.StatusOK, list)
}

// toExpression returns a regular expression for a pattern that is one, or plain text, or both:
// clients use either, and "TODO(x)" as an expression alone would not match itself.
func toExpression(pattern string) string {
	plain := regexp.QuoteMeta(pattern)
	if _, err := regexp.Compile(pattern); err != nil {
		return plain
	}
	return "(?:" + pattern + ")|" + plain
}

// runSearch searches the path in the query, and returns that path as the prefix of the matches'.
func (c *call) runSearch(ctx context.Context, r applet.SearchRequest) (prefix string, found []applet.Match, err error) {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return "", nil, err
	}
	f, err := c.statTarget(ctx, p) // also because a program is not confined as file calls are
	if err != nil {
		return "", nil, err
	}
	r.Path, r.Hidden, r.All, r.Limit = p, true, true, maxFound
	result, err := callApplet[applet.SearchResult](ctx, c, applet.Search, r)
	if err != nil {
		return "", nil, toFileError(err)
	}
	if !f.Mode.IsDir() {
		p = path.Dir(p)
	}
	return p, result.Matches, nil
}

// searchResult has the files whose names match a pattern.
type searchResult struct {
	Files []string `json:"files"`
}

// searchFiles returns the files and directories whose names match a pattern such as *.go.
func (fileHandlers) searchFiles(ctx context.Context, c *call) error {
	pattern := c.r.URL.Query().Get("pattern")
	if pattern == "" {
		return sandpit.Errorf(sandpit.Invalid, "pattern is missing")
	}
	p, found, err := c.runSearch(ctx, applet.SearchRequest{Names: []string{pattern}})
	if err != nil {
		return err
	}
	result := searchResult{Files: make([]string, 0, len(found))}
	for _, m := range found {
		result.Files = append(result.Files, path.Join(p, m.Path))
	}
	return c.writeJSON(http.StatusOK, result)
}

// replaceRequest is the body of a replacement.
type replaceRequest struct {
	Files    []string `json:"files"`
	Pattern  string   `json:"pattern"`
	NewValue *string  `json:"newValue"`
}

// replaceResult is the result of a replacement in one file.
type replaceResult struct {
	File    string `json:"file"`
	Success bool   `json:"success"`
	Error   string `json:"error,omitempty"`
}

// replaceInFiles replaces a text in files. The failure of one file does not affect the others.
func (fileHandlers) replaceInFiles(ctx context.Context, c *call) error {
	var req replaceRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if len(req.Files) == 0 || req.Pattern == "" || req.NewValue == nil {
		return sandpit.Errorf(sandpit.Invalid, "files, pattern and newValue are required")
	}
	if len(req.Files) > maxFound {
		return sandpit.Errorf(sandpit.Invalid, "files: %d, want at most %d", len(req.Files), maxFound)
	}
	results := make([]replaceResult, len(req.Files))
	for i, name := range req.Files {
		err := c.replaceInFile(ctx, name, req.Pattern, *req.NewValue)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		results[i] = replaceResult{File: name, Success: err == nil}
		if err != nil {
			results[i].Error = problemOf(ctx, c.r, err).Message
		}
	}
	return c.writeJSON(http.StatusOK, results)
}

// replaceInFile replaces all occurrences of a text in a file. It keeps the file's permissions.
func (c *call) replaceInFile(ctx context.Context, name, old, replacement string) error {
	p, err := c.filePath(ctx, "files", name)
	if err != nil {
		return err
	}
	f, err := c.openFile(ctx, p)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.size > maxReplaced {
		return sandpit.Errorf(sandpit.Invalid, "replace in %s: it has %d bytes, want at most %d", p, f.size, maxReplaced)
	}
	account := memory.AccountOf(ctx)
	if err := account.Reserve(f.size * replaceCost); err != nil {
		return err
	}
	defer account.Return(f.size * replaceCost)
	text, err := io.ReadAll(io.LimitReader(f, f.size))
	if err != nil {
		return err
	}
	count := strings.Count(string(text), old)
	if count == 0 {
		return nil
	}
	size := len(text) + count*(len(replacement)-len(old))
	if size > maxReplaced {
		return sandpit.Errorf(sandpit.Invalid, "replace in %s: the result has %d bytes, want at most %d", p, size, maxReplaced)
	}
	if err := account.Reserve(int64(size)); err != nil {
		return err
	}
	defer account.Return(int64(size))
	changed := strings.ReplaceAll(string(text), old, replacement)
	return toFileError(c.guest.WriteFile(ctx, "", p, strings.NewReader(changed), sandpit.WriteOptions{}))
}
