package memory

import "reflect"

const (
	// headerSize is how many bytes a string, slice or interface takes besides its content.
	headerSize = 16
	// entrySize is how many bytes an entry of a map takes besides its key and value.
	entrySize = 16
	// maxDepth bounds how deep SizeOf looks.
	maxDepth = 32
)

// SizeOf returns about how many bytes of memory a value takes, with all that it refers to.
// What several parts of it refer to counts several times.
func SizeOf(value any) int64 { return sizeOf(reflect.ValueOf(value), 0) }

func sizeOf(v reflect.Value, depth int) (size int64) {
	if !v.IsValid() || depth > maxDepth {
		return 0
	}
	switch v.Kind() {
	case reflect.String:
		return headerSize + int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return headerSize
		}
		return headerSize + sizeOf(v.Elem(), depth+1)
	case reflect.Slice:
		return headerSize + elementsSize(v, depth)
	case reflect.Array:
		return elementsSize(v, depth)
	case reflect.Map:
		size = headerSize
		for entries := v.MapRange(); entries.Next(); {
			size += entrySize + sizeOf(entries.Key(), depth+1) + sizeOf(entries.Value(), depth+1)
		}
		return size
	case reflect.Struct:
		for _, field := range v.Fields() {
			size += sizeOf(field, depth+1)
		}
		return size
	default:
		return int64(v.Type().Size()) //nolint:gosec // the size of a type
	}
}

// elementsSize returns the size of what a slice or array consists of.
func elementsSize(v reflect.Value, depth int) (size int64) {
	switch kind := v.Type().Elem().Kind(); kind {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		for i := range v.Len() {
			size += sizeOf(v.Index(i), depth+1)
		}
		return size
	default:
		return int64(v.Len()) * int64(v.Type().Elem().Size()) //nolint:gosec // the size of a type
	}
}
