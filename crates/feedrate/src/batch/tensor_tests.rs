use super::*;

fn arange(shape: &[usize]) -> Tensor {
    let n = i32::try_from(count(shape).unwrap()).unwrap();
    Tensor::from_vec((0..n).collect(), shape).unwrap()
}

#[test]
fn views_share_memory() {
    let whole = arange(&[4, 3]);
    let part = whole.narrow(1, 2).unwrap();
    assert_eq!(part.as_slice::<i32>().unwrap(), [3, 4, 5, 6, 7, 8]);
    assert_eq!(part.get(1).unwrap().as_slice::<i32>().unwrap(), [6, 7, 8]);
    let inside = part.as_bytes().unwrap().as_ptr() as usize;
    assert_eq!(inside - whole.as_bytes().unwrap().as_ptr() as usize, 12);
}

#[test]
fn strided_copies_match_a_naive_walk() {
    let whole = arange(&[2, 3, 4]);
    let turned = whole.transpose(0, 2).unwrap();
    assert!(!turned.is_contiguous());
    assert!(matches!(turned.as_bytes(), Err(TensorError::Strided { .. })));
    let mut naive = Vec::new();
    for k in 0..4 {
        for j in 0..3 {
            for i in 0..2 {
                naive.push(i * 12 + j * 4 + k);
            }
        }
    }
    assert_eq!(turned.to_vec::<i32>().unwrap(), naive);
    // A transposition that leaves the last dimension in one piece.
    let turned = whole.transpose(0, 1).unwrap();
    let rows: Vec<i32> = (0..3)
        .flat_map(|j| (0..2).flat_map(move |i| (0..4).map(move |k| i * 12 + j * 4 + k)))
        .collect();
    assert_eq!(turned.to_vec::<i32>().unwrap(), rows);
    assert_eq!(turned, Tensor::from_vec(rows, &[3, 2, 4]).unwrap());
}

#[test]
fn wrong_requests_are_errors() {
    let whole = arange(&[2, 3]);
    assert!(matches!(whole.as_slice::<u8>(), Err(TensorError::Type { .. })));
    assert_eq!(whole.get(2).unwrap_err(), TensorError::Index { index: 2, len: 2 });
    assert!(whole.narrow(1, 2).is_err());
    assert!(whole.narrow(usize::MAX, 2).is_err());
    assert!(whole.transpose(0, 2).is_err());
    assert!(whole.reshape(&[7]).is_err());
    assert!(whole.reshape(&[usize::MAX, 2]).is_err());
    assert!(Tensor::from_vec(vec![1_u8], &[2]).is_err());
    let buffer: Arc<dyn Buffer> = Arc::from(Heap.reserve(16).unwrap());
    for (shape, strides, offset) in [
        (&[5][..], &[1][..], 0),
        (&[4], &[1], 1),
        (&[2], &[4], 0),
        (&[2], &[usize::MAX], 0),
        (&[usize::MAX, usize::MAX], &[0, 0], 0),
        (&[1], &[], 0),
    ] {
        let view = Tensor::from_buffer(Arc::clone(&buffer), DType::F32, shape, strides, offset);
        assert!(
            matches!(view, Err(TensorError::Bounds { .. })),
            "{shape:?} {strides:?} {offset}"
        );
    }
    assert!(Tensor::from_buffer(Arc::clone(&buffer), DType::F32, &[0], &[1], 16).is_ok());
    let mut odd = Tensor::zeros(DType::Bool, &[2]).unwrap();
    odd.as_bytes_mut().unwrap()[1] = 2;
    assert!(matches!(odd.as_slice::<bool>(), Err(TensorError::Content { .. })));
}

#[test]
fn only_a_sole_view_writes() {
    let mut one = arange(&[3]);
    let other = one.clone();
    assert!(one.as_bytes_mut().is_none());
    drop(other);
    one.as_bytes_mut().unwrap()[0] = 9;
    assert_eq!(one.as_slice::<i32>().unwrap(), [9, 1, 2]);
}

#[test]
fn empty_and_scalar() {
    let empty = Tensor::zeros(DType::F32, &[0, 3]).unwrap();
    assert_eq!((empty.elements(), empty.bytes()), (0, 0));
    assert!(empty.as_slice::<f32>().unwrap().is_empty());
    assert_eq!(
        empty.transpose(0, 1).unwrap().to_vec::<f32>().unwrap(),
        Vec::<f32>::new()
    );
    // Images without boxes: no element of it lies anywhere.
    let none = Tensor::zeros(DType::F32, &[3, 0, 4]).unwrap();
    for view in [none.get(2).unwrap(), none.narrow(2, 1).unwrap().get(0).unwrap()] {
        assert_eq!(view.shape(), [0, 4]);
        assert_eq!(view.to_vec::<f32>().unwrap(), Vec::<f32>::new());
        assert_eq!(view, none.get(0).unwrap());
    }
    let one = Tensor::scalar(2.5_f64).unwrap();
    assert_eq!((one.shape(), one.as_slice::<f64>().unwrap()), (&[][..], &[2.5][..]));
    assert!(one.get(0).is_err());
}
