package native

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// The library that reads requests needs exported names for embedded types.

// PageIn selects a page of a list.
type PageIn struct {
	Cursor string `query:"cursor" maxLength:"100" doc:"The cursor of the previous page."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
}

// OwnerIn selects the owner of what is listed.
type OwnerIn struct {
	Owner string `query:"owner" maxLength:"200" doc:"The owner; only administrators may name another owner. Default: the client's own; for administrators, all owners."`
}

// identifier is the type of IDs by which a list is ordered.
type identifier interface {
	~string
	Validate() error
}

// parseCursor returns the ID after which a page begins; "" for the first page. Invalid.
func parseCursor[ID identifier](cursor string) (ID, error) {
	after := ID(cursor)
	if cursor != "" && after.Validate() != nil {
		return "", sandpit.Errorf(sandpit.Invalid, "invalid cursor %.40q", cursor)
	}
	return after, nil
}

// toPage returns the first page of a list, which has one item more than the limit if there
// is another page.
func toPage[T any](list []T, limit int, cursor func(T) string) wire.Page[T] {
	p := wire.Page[T]{Items: list}
	if list == nil {
		p.Items = []T{}
	}
	if len(list) > limit {
		p.Items = list[:limit]
		p.Next = cursor(p.Items[limit-1])
	}
	return p
}
