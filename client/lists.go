package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// pageSize is the number of items in one request of a list.
const pageSize = 500

const (
	// maxItems and maxEmpty bound a list, so that a faulty server cannot make it endless.
	maxItems = 1_000_000
	// maxEmpty bounds the empty pages in a row.
	maxEmpty = 100
)

// listPages fetches a list page by page. A limit of zero means all.
func listPages[T any](ctx context.Context, c *Client, at string, query url.Values, limit int) ([]T, error) {
	var list []T
	for empty := 0; ; {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(list))
		}
		query.Set("limit", strconv.Itoa(size))
		var page wire.Page[T]
		if err := c.doCall(ctx, call{method: http.MethodGet, path: at, query: query, out: &page, idempotent: true}); err != nil {
			return nil, err
		}
		list = append(list, page.Items...)
		if limit > 0 && len(list) > limit {
			list = list[:limit] // more was not requested
		}
		if empty++; len(page.Items) > 0 {
			empty = 0
		}
		if len(list) > maxItems || empty > maxEmpty {
			return nil, sandpit.Errorf(sandpit.Exhausted, "the server's list does not end: %d items so far", len(list))
		}
		if page.Next == "" || page.Next == query.Get("cursor") || limit > 0 && len(list) >= limit {
			return list, nil
		}
		query.Set("cursor", page.Next)
	}
}

// getJSON reads a document.
func getJSON[T any](ctx context.Context, c *Client, at string, query url.Values) (T, error) {
	var out T
	err := c.doCall(ctx, call{method: http.MethodGet, path: at, query: query, out: &out, idempotent: true})
	return out, err
}

// getItems reads the items of a list of one page.
func getItems[T any](ctx context.Context, c *Client, at string) ([]T, error) {
	page, err := getJSON[wire.Page[T]](ctx, c, at, nil)
	return page.Items, err
}

// newOwnerQuery returns a query that names an owner, unless that is "".
func newOwnerQuery(owner string) url.Values {
	query := url.Values{}
	if owner != "" {
		query.Set("owner", owner)
	}
	return query
}
