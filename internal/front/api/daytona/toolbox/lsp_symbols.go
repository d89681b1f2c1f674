package toolbox

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

// symbolPosition, symbolRange and symbolLocation are those of the protocol.
type (
	symbolPosition struct {
		Line      int `json:"line"`
		Character int `json:"character"`
	}
	symbolRange struct {
		Start symbolPosition `json:"start"`
		End   symbolPosition `json:"end"`
	}
	symbolLocation struct {
		URI   string      `json:"uri"`
		Range symbolRange `json:"range"`
	}
)

// symbol is a named part of a program.
type symbol struct {
	Name     string         `json:"name"`
	Kind     int            `json:"kind"`
	Location symbolLocation `json:"location"`
}

// anySymbol is a symbol in either form of the protocol.
type anySymbol struct {
	symbol

	SelectionRange *symbolRange `json:"selectionRange"`
	Children       []anySymbol  `json:"children"`
}

func (lspHandlers) listDocumentSymbols(ctx context.Context, c *call) error {
	server, _, document, err := c.openDocumentServer(ctx)
	if err != nil {
		return err
	}
	found, err := server.documentSymbols(ctx, toURI(document))
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, found)
}

// findWorkspaceSymbols responds with the symbols of a project whose names contain a text. Servers
// that cannot search are asked about each source file.
func (lspHandlers) findWorkspaceSymbols(ctx context.Context, c *call) error {
	server, req, _, err := c.openServer(ctx)
	if err != nil {
		return err
	}
	text := c.r.URL.Query().Get("query")
	found, err := server.requestSymbols(ctx, "workspace/symbol", map[string]any{"query": text}, "")
	if errors.Is(err, errUnknownMethod) {
		found, err = c.searchSymbols(ctx, server, req, strings.ToLower(text))
	}
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, found)
}

// maxSources is in how many source files of a project symbols are searched.
const maxSources = 500

// searchSymbols returns the symbols in the source files of a project whose names contain a text in
// lower case.
func (c *call) searchSymbols(ctx context.Context, server *languageServer, req lspRequest, text string) ([]symbol, error) {
	project, err := c.filePath(ctx, "pathToProject", req.PathToProject)
	if err != nil {
		return nil, err
	}
	sources, err := callApplet[applet.SearchResult](ctx, c, applet.Search, applet.SearchRequest{
		Path: project, Names: languages()[req.LanguageID].sources, Limit: maxSources,
	})
	if err != nil {
		return nil, toFileError(err)
	}
	limit := server.requestTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, sandpit.Errorf(sandpit.Timeout, "the search for symbols has not ended within %v", limit))
	defer cancel()
	list := []symbol{}
	for _, source := range sources.Matches {
		found, err := server.documentSymbols(ctx, toURI(path.Join(project, source.Path)))
		if err != nil {
			return nil, err
		}
		for _, one := range found {
			if !strings.Contains(strings.ToLower(one.Name), text) {
				continue
			}
			if err := memory.AccountOf(ctx).Reserve(int64(len(one.Name) + len(one.Location.URI))); err != nil { // the rest was reserved
				return nil, err
			}
			list = append(list, one)
		}
	}
	return list, nil
}

// documentSymbols returns the symbols of a document.
func (l *languageServer) documentSymbols(ctx context.Context, uri string) ([]symbol, error) {
	return l.requestSymbols(ctx, "textDocument/documentSymbol", map[string]any{"textDocument": textDocument{URI: uri}}, uri)
}

// requestSymbols returns the symbols that a language server returns. Those without a location are
// in the document.
func (l *languageServer) requestSymbols(ctx context.Context, method string, params map[string]any, document string) ([]symbol, error) {
	raw, release, err := l.request(ctx, method, params)
	if err != nil {
		return nil, err
	}
	defer release()
	var found []anySymbol
	if err := decode(ctx, raw, &found); err != nil {
		return nil, err
	}
	return appendSymbols([]symbol{}, found, document, 0), nil
}

// maxNesting bounds the depth of symbols in symbols.
const maxNesting = 100

// appendSymbols appends symbols and those within them. Those in the form without a location are
// in the document.
func appendSymbols(list []symbol, found []anySymbol, document string, depth int) []symbol {
	for _, one := range found {
		if one.SelectionRange != nil {
			one.Location.Range = *one.SelectionRange
		}
		one.Location.URI = cmp.Or(one.Location.URI, document)
		list = append(list, one.symbol)
		if depth < maxNesting {
			list = appendSymbols(list, one.Children, document, depth+1)
		}
	}
	return list
}
